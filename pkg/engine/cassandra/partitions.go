package cassandra

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/notifyd/notifyd/pkg/rows"
)

// partitions implements rows.Partitions. Every row of the table records is read at
// SERIAL. A row that a change compares is never written by a change that compares
// nothing, because plain writes and lightweight transactions must not be mixed.
type partitions struct{ s *Store }

const inPart = ` WHERE kind = ? AND part = ?`

// record is one row as it is stored.
type record struct {
	value  []byte // nil: there is no row
	writer int64  // the nonce of the swap that stored it; 0: no swap did
}

// read returns the rows of keys that are there.
func (p partitions) read(ctx context.Context, part rows.Part, keys []string) (map[string]record, error) {
	in := make([][]byte, len(keys))
	for i, key := range keys {
		in[i] = []byte(key)
	}
	p.s.counts.serial.Add(1)
	q := p.s.query(`SELECT key, value, writer, writetime(value) FROM records`+inPart+` AND key IN ?`, string(part.Table), part.Name, in)
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
			p.s.clock.see(at)
			found[string(key)] = r
		}
	})
	return found, err
}

func (p partitions) Get(ctx context.Context, part rows.Part, keys ...string) ([][]byte, error) {
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

// above returns the least key that is greater than every key that begins with prefix; nil:
// there is none.
func above(prefix string) []byte {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return b[:i+1]
		}
	}
	return nil
}

// Scan reads pages. It sees each swap that was answered before.
func (p partitions) Scan(ctx context.Context, part rows.Part, in rows.Range, fn func(rows.Row) (bool, error)) error {
	cql, args := `SELECT key, value FROM records`+inPart, []any{string(part.Table), part.Name}
	if in.After >= in.Prefix {
		cql, args = cql+` AND key > ?`, append(args, []byte(in.After))
	} else {
		cql, args = cql+` AND key >= ?`, append(args, []byte(in.Prefix))
	}
	to := above(in.Prefix)
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

// Swap implements rows.Partitions. A change that compares is one lightweight transaction.
// What it clears must hold none of the rows that it stores.
func (p partitions) Swap(ctx context.Context, cs ...rows.Change) (bool, error) {
	if len(cs) != 1 || len(cs[0].Add) > 0 || cs[0].Numbers > 0 {
		return false, errors.New("cassandra changes one partition at a time")
	}
	c, me := &cs[0], nonce()
	stmts := p.statements(c, me)
	if len(c.If) == 0 {
		err := p.s.write(ctx, p.s.clock.now(), stmts...)
		return err == nil, err
	}
	won, err := p.s.settle(ctx, "rows of "+string(c.Part.Table)+"/"+c.Part.Name, func() (verdict, error) { return p.look(ctx, c, me) }, stmts...)
	if err == nil && !won {
		err = pause(ctx, lostPause) // the caller will try again
	}
	return won, err
}

// lostPause is how long a caller waits that lost a swap, as a number of tries of pause.
const lostPause = 4

// statements returns what does a change.
func (p partitions) statements(c *rows.Change, me int64) (stmts []stmt) {
	kind, part := string(c.Part.Table), c.Part.Name
	for _, prefix := range c.Clear {
		stmts = append(stmts, stmt{`DELETE FROM records` + inPart + ` AND key >= ? AND key < ?`, []any{kind, part, []byte(prefix), above(prefix)}})
	}
	for _, row := range c.Do {
		key := []byte(row.Key)
		x := stmt{`UPDATE records SET value = ?, writer = ?` + inPart + ` AND key = ?`, []any{row.Value, me, kind, part, key}}
		if row.Value == nil {
			x = stmt{`DELETE FROM records` + inPart + ` AND key = ?`, []any{kind, part, key}}
		}
		if i := slices.IndexFunc(c.If, func(r rows.Row) bool { return r.Key == row.Key }); i >= 0 {
			var was any // null: there is no row
			if c.If[i].Value != nil {
				was = c.If[i].Value
			}
			x = stmt{x.cql + ` IF value = ?`, append(x.args, was)}
		}
		stmts = append(stmts, x)
	}
	return stmts
}

// lookAt is how many rows a look reads at most, besides the rows that the change compares.
const lookAt = 4

// look says what became of a change that compares.
func (p partitions) look(ctx context.Context, c *rows.Change, me int64) (verdict, error) {
	var keys []string
	for _, row := range c.If {
		keys = append(keys, row.Key)
	}
	do := c.Do[:min(len(c.Do), len(c.If)+lookAt)]
	for _, row := range do {
		keys = append(keys, row.Key)
	}
	now, err := p.read(ctx, c.Part, keys)
	if err != nil {
		return 0, err
	}
	removed, missing := true, false
	for _, row := range do {
		have, there := now[row.Key]
		if row.Value != nil && there && have.writer == me {
			return done, nil
		}
		missing = missing || row.Value != nil && !there
		removed = removed && row.Value == nil && !there
	}
	same, inserted := true, false
	for _, row := range c.If {
		have, there := now[row.Key]
		same = same && there == (row.Value != nil) && bytes.Equal(have.value, row.Value)
		inserted = inserted || row.Value == nil && there
	}
	switch {
	case removed:
		return done, nil
	case same:
		return undone, nil
	case missing, inserted: // ours would still be there
		return lost, nil
	}
	return unknown, nil
}

// Turn implements rows.Partitions.
func (p partitions) Turn(ctx context.Context, part rows.Part) (func(), error) {
	return p.s.locks.lock(ctx, string(part.Table)+"/"+part.Name)
}
