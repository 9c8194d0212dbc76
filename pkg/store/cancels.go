package store

import (
	"context"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// Cancels stores the first cancellation of each scope under its version, a number that is higher
// than every earlier version. It also stores this version under the scope. Later cancellations of
// the same scope are not stored.
type Cancels struct{ rows rows.Rows }

// Put implements users.CancelStore.
func (c Cancels) Put(ctx context.Context, in engine.Cancel) (given uint64, err error) {
	if in.Scope == "" {
		return 0, notify.Invalid("bad_cancel", "scope", "a cancellation must have a scope")
	}
	in.Version = 0 // the key holds the version
	v, err := pack("bad_cancel", "cancellation", in)
	if err != nil {
		return 0, err
	}
	scope := "s" + in.Scope
	for {
		won, err := c.rows.Swap(ctx, rows.Change{Part: tableCancels, Expect: []rows.Row{{Key: scope}}, Numbers: 1, Number: func(_ int, n uint64) []rows.Row {
			given = n
			return []rows.Row{{Key: "n" + num(n), Value: v}, {Key: scope, Value: []byte(num(n))}}
		}})
		switch {
		case err != nil:
			return 0, err
		case won:
			return given, nil
		}
		if first, ok, err := c.Get(ctx, in.Scope); ok || err != nil {
			return first.Version, err
		}
	}
}

func readCancel(r rows.Row) (engine.Cancel, error) {
	c, err := unpack[engine.Cancel](r)
	c.Version = numberAt(r.Key)
	return c, err
}

// Get implements users.CancelStore.
func (c Cancels) Get(ctx context.Context, scope string) (engine.Cancel, bool, error) {
	version, err := c.rows.Get(ctx, tableCancels, "s"+scope)
	if err != nil || version[0] == nil {
		return engine.Cancel{}, false, err
	}
	row := rows.Row{Key: "n" + string(version[0])}
	v, err := c.rows.Get(ctx, tableCancels, row.Key)
	if err != nil || v[0] == nil { // purged between the two reads
		return engine.Cancel{}, false, err
	}
	row.Value = v[0]
	out, err := readCancel(row)
	return out, err == nil, err
}

// Changes implements users.CancelStore.
func (c Cancels) Changes(ctx context.Context, since uint64, max int) ([]engine.Cancel, error) {
	return scanList(ctx, c.rows, tableCancels, rows.Range{Prefix: "n", After: "n" + num(since)}, max, readCancel)
}

// PurgeCancels removes cancellations that were made before cutoff (ms since 1970). It never removes
// the newest cancellation, because then its version could be used again for another cancellation.
// It stops at the first cancellation that is too young, because versions ascend with time. It
// returns how many cancellations it removed, also with an error.
func (c *Contracts) PurgeCancels(ctx context.Context, cutoff int64) (total int, err error) {
	for {
		old, err := Cancels{c.rows}.Changes(ctx, 0, manyAtOnce+1)
		if err != nil {
			return total, err
		}
		n := slices.IndexFunc(old, func(c engine.Cancel) bool { return c.At >= cutoff })
		if n < 0 {
			n = len(old) - 1 // keep the newest
		}
		if n <= 0 {
			return total, nil
		}
		var gone []rows.Row
		for _, x := range old[:n] {
			gone = append(gone, rows.Row{Key: "n" + num(x.Version)}, rows.Row{Key: "s" + x.Scope})
		}
		if _, err := c.rows.Swap(ctx, rows.Change{Part: tableCancels, Set: gone}); err != nil {
			return total, err
		}
		total += n
	}
}
