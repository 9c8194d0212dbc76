package cassandra

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/notifyd/notifyd/pkg/rows"
)

// partitions implements rows.Partitions with the table records. Get reads with the consistency
// SERIAL. If a change compares a row (Expect), every other change of that row must compare it too,
// so that plain writes and lightweight transactions are not mixed.
type partitions struct{ s *Store }

const wherePart = ` WHERE kind = ? AND part = ?`

// record is one row as it is stored.
type record struct {
	value  []byte // nil: the row does not exist
	writer int64  // the nonce of the swap that stored the row; 0: no swap stored it
}

// read reads the rows with the given keys, with the consistency SERIAL, and returns the rows that
// exist.
func (p partitions) read(ctx context.Context, part rows.Partition, keys []string) (map[string]record, error) {
	in := make([][]byte, len(keys))
	for i, key := range keys {
		in[i] = []byte(key)
	}
	p.s.counts.serial.Add(1)
	q := p.s.query(`SELECT key, value, writer, writetime(value) FROM records`+wherePart+` AND key IN ?`, string(part.Table), part.Name, in)
	found := map[string]record{}
	err := p.s.iterate(ctx, q.Consistency(p.s.serial), func(scan func(...any) bool) error {
		for {
			var key []byte
			var at int64
			r := record{}
			if !scan(&key, &r.value, &r.writer, &at) {
				return nil
			}
			if r.value == nil {
				r.value = []byte{}
			}
			p.s.clock.observe(at)
			found[string(key)] = r
		}
	})
	return found, err
}

func (p partitions) Get(ctx context.Context, part rows.Partition, keys ...string) ([][]byte, error) {
	found, err := p.read(ctx, part, keys)
	if err != nil {
		return nil, err
	}
	out := make([][]byte, len(keys))
	for i, key := range keys {
		out[i] = found[key].value
	}
	return out, nil
}

// prefixEnd returns the smallest key that is greater than every key with this prefix. It
// returns nil if there is no such key.
func prefixEnd(prefix string) []byte {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return b[:i+1]
		}
	}
	return nil
}

// Scan implements rows.Scanner. It reads the rows in pages. The rows include every swap
// that returned before the call.
func (p partitions) Scan(ctx context.Context, part rows.Partition, in rows.Range, fn func(rows.Row) (bool, error)) error {
	cql, args := `SELECT key, value FROM records`+wherePart, []any{string(part.Table), part.Name}
	if in.After >= in.Prefix {
		cql, args = cql+` AND key > ?`, append(args, []byte(in.After))
	} else {
		cql, args = cql+` AND key >= ?`, append(args, []byte(in.Prefix))
	}
	to := prefixEnd(in.Prefix)
	if in.Before != "" && (to == nil || in.Before < string(to)) {
		to = []byte(in.Before)
	}
	if to != nil {
		cql, args = cql+` AND key < ?`, append(args, to)
	}
	if in.Back {
		cql += ` ORDER BY key DESC`
	}
	return p.s.rows(ctx, func(scan func(...any) bool) error {
		for {
			var key, value []byte
			if !scan(&key, &value) {
				return nil
			}
			if value == nil {
				value = []byte{}
			}
			if more, err := fn(rows.Row{Key: string(key), Value: value}); err != nil || !more {
				return err
			}
		}
	}, cql, args...)
}

// Swap implements rows.Partitions. A change that compares rows (Expect) is one lightweight
// transaction. The caller must not store a row (Set) whose key begins with a prefix in Clear.
func (p partitions) Swap(ctx context.Context, cs ...rows.Change) (bool, error) {
	if len(cs) != 1 || len(cs[0].Insert) > 0 || cs[0].Numbers > 0 {
		return false, errors.New("cassandra: a Swap must have exactly one change, and the change must not use Insert or Number")
	}
	c, me := &cs[0], nonce()
	stmts := p.statements(c, me)
	if len(c.Expect) == 0 {
		err := p.s.write(ctx, p.s.clock.now(), stmts...)
		return err == nil, err
	}
	won, err := p.s.runConditional(ctx, "a change of rows of "+string(c.Part.Table)+"/"+c.Part.Name, func() (swapOutcome, error) { return p.readOutcome(ctx, c, me) }, stmts...)
	if err == nil && !won {
		err = backoff(ctx, lostTry) // wait, because callers try again at once
	}
	return won, err
}

// lostTry is the number of tries that is passed to backoff after a swap that was not applied.
const lostTry = 4

// statements returns the statements of a change.
func (p partitions) statements(c *rows.Change, me int64) (stmts []stmt) {
	kind, part := string(c.Part.Table), c.Part.Name
	for _, prefix := range c.Clear {
		stmts = append(stmts, stmt{`DELETE FROM records` + wherePart + ` AND key >= ? AND key < ?`, []any{kind, part, []byte(prefix), prefixEnd(prefix)}})
	}
	for _, row := range c.Set {
		key := []byte(row.Key)
		x := stmt{`UPDATE records SET value = ?, writer = ?` + wherePart + ` AND key = ?`, []any{row.Value, me, kind, part, key}}
		if row.Value == nil {
			x = stmt{`DELETE FROM records` + wherePart + ` AND key = ?`, []any{kind, part, key}}
		}
		if i := slices.IndexFunc(c.Expect, func(r rows.Row) bool { return r.Key == row.Key }); i >= 0 {
			var was any // null: the row must not exist
			if c.Expect[i].Value != nil {
				was = c.Expect[i].Value
			}
			x = stmt{x.cql + ` IF value = ?`, append(x.args, was)}
		}
		stmts = append(stmts, x)
	}
	return stmts
}

// If a change has n rows in Expect, readOutcome reads at most n + maxReadBack rows of its Set.
const maxReadBack = 4

// readOutcome is called for a change whose answer was lost. It reads rows of the change to
// find out whether the change was applied. The parameter me is the nonce of the change.
func (p partitions) readOutcome(ctx context.Context, c *rows.Change, me int64) (swapOutcome, error) {
	var keys []string
	for _, row := range c.Expect {
		keys = append(keys, row.Key)
	}
	set := c.Set[:min(len(c.Set), len(c.Expect)+maxReadBack)]
	for _, row := range set {
		keys = append(keys, row.Key)
	}
	now, err := p.read(ctx, c.Part, keys)
	if err != nil {
		return 0, err
	}
	removed, missing := true, false
	for _, row := range set {
		have, there := now[row.Key]
		if row.Value != nil && there && have.writer == me {
			return swapDone, nil
		}
		missing = missing || row.Value != nil && !there
		removed = removed && row.Value == nil && !there
	}
	same, inserted := true, false
	for _, row := range c.Expect {
		have, there := now[row.Key]
		same = same && there == (row.Value != nil) && bytes.Equal(have.value, row.Value)
		inserted = inserted || row.Value == nil && there
	}
	switch {
	case removed:
		return swapDone, nil
	case same:
		return swapUndone, nil
	case missing, inserted: // if this change had been applied, its rows would exist
		return swapLost, nil
	}
	return swapUnknown, nil
}

// Turn implements rows.Partitions.
func (p partitions) Turn(ctx context.Context, part rows.Partition) (func(), error) {
	return p.s.locks.lock(ctx, string(part.Table)+"/"+part.Name)
}
