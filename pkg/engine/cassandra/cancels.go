package cassandra

import (
	"context"
	"encoding/json"
	"math"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Cancels implements users.CancelStore.
type Cancels struct {
	s   *Store
	log numbered
}

// Put implements users.CancelStore.
func (c Cancels) Put(ctx context.Context, in engine.Cancel) (uint64, error) {
	if in.Scope == "" || len(in.Scope) > 1<<10 {
		return 0, notify.Invalid("bad_cancel", "scope", "a cancellation must have a scope of 1 to 1,024 bytes")
	}
	version, ok, err := c.version(ctx, in.Scope)
	if err != nil || ok {
		return version, err
	}
	in.Version = 0 // Version is the number of the row in the log, so it is not stored
	v, err := json.Marshal(in)
	if err != nil {
		e := notify.Invalid("bad_cancel", "", "the cancellation cannot be written as JSON")
		e.Err = err
		return 0, e
	}
	first, n, err := c.log.appendRows(ctx, func(logRow, int) ([][]byte, error) {
		// Another caller may have stored the cancellation while this caller waited for the
		// lock of the log.
		if version, ok, err = c.version(ctx, in.Scope); err != nil || ok {
			return nil, err
		}
		return [][]byte{v}, nil
	})
	if err != nil || n == 0 {
		return version, err
	}
	me := nonce()
	won, err := c.s.swapVersion(ctx, versionSwap{
		what: "the cancellation of " + in.Scope, to: first, writer: me, elseLost: true,
		readBack: stmt{`SELECT version, writer FROM cancels WHERE scope = ?`, []any{in.Scope}},
	}, stmt{`INSERT INTO cancels (scope, version, writer) VALUES (?, ?, ?) IF NOT EXISTS`, []any{in.Scope, first, me}})
	if err != nil {
		return 0, err
	}
	if won {
		return uint64(first), nil
	}
	version, _, err = c.version(ctx, in.Scope)
	return version, err
}

// version returns the version of a scope's cancellation. The result includes every Put that
// returned before the call.
func (c Cancels) version(ctx context.Context, scope string) (uint64, bool, error) {
	var v int64
	ok, err := c.s.getSerial(ctx, `SELECT version FROM cancels WHERE scope = ?`, []any{scope}, &v)
	return uint64(v), ok, err
}

func readCancel(r logRow) (out engine.Cancel, err error) {
	if json.Unmarshal(r.data, &out) != nil || out.Scope == "" {
		return engine.Cancel{}, corrupt("a cancellation")
	}
	out.Version = uint64(r.n)
	return out, nil
}

// Get implements users.CancelStore.
func (c Cancels) Get(ctx context.Context, scope string) (engine.Cancel, bool, error) {
	if scope == "" {
		return engine.Cancel{}, false, nil
	}
	v, ok, err := c.version(ctx, scope)
	if err != nil || !ok {
		return engine.Cancel{}, false, err
	}
	page, err := c.log.readPage(ctx, v-1, v, 1)
	if err != nil {
		return engine.Cancel{}, false, err
	}
	if len(page) == 0 {
		return engine.Cancel{}, false, corrupt("the cancellation of " + scope)
	}
	out, err := readCancel(page[0])
	return out, err == nil, err
}

// Changes implements users.CancelStore. If several calls of Put ran at the same time, the log may
// have several rows of one scope. Only the row whose number is stored for the scope in the table
// "cancels" is valid, and Changes skips the others. While that table has no number for the scope,
// because a Put is not finished, Changes returns every row of the scope.
func (c Cancels) Changes(ctx context.Context, since uint64, max int) (out []engine.Cancel, err error) {
	for len(out) < max {
		page, err := c.log.readPage(ctx, since, math.MaxUint64, max-len(out))
		if err != nil || len(page) == 0 {
			return out, err
		}
		ones, err := readEach(page, func(r logRow) (engine.Cancel, error) {
			one, err := readCancel(r)
			if err != nil {
				return one, err
			}
			kept := r.n
			if _, err = c.s.get(ctx, `SELECT version FROM cancels WHERE scope = ?`, []any{one.Scope}, &kept); kept != r.n {
				one = engine.Cancel{}
			}
			return one, err
		})
		if err != nil {
			return nil, err
		}
		for _, one := range ones {
			if one.Scope != "" {
				out = append(out, one)
			}
		}
		since = uint64(page[len(page)-1].n)
	}
	return out, nil
}
