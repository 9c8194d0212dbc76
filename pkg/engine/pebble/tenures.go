package pebble

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// tenures fence the rows of earlier owners of a partition. They live in memory:
// the store has one process, and its owners end with it.
type tenures struct {
	mu sync.Mutex
	of map[topicPartition]tenure
}

type topicPartition struct {
	topic string
	n     int32
}

type tenure struct {
	begun int64 // Start of the last TakeOver
	// fenced is the Start below which rows are dropped. It belongs to the latest tenure
	// that has resumed a row; a tenure that was begun and not used fences no writer. It
	// is raised under the committer's lock.
	fenced int64
	seen   int64 // likewise, once the rows that were written before are visible
}

// change calls f with the tenure of a partition.
func (t *tenures) change(p topicPartition, f func(*tenure)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[topicPartition]tenure{}
	}
	x := t.of[p]
	f(&x)
	t.of[p] = x
}

// over reports whether the tenure that stamped r has ended. The committer's lock
// is held.
func (t *tenures) over(r *notify.Row) bool {
	if r.Stamp <= 0 {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return r.Stamp < t.of[topicPartition{r.Topic, r.LogPart}].fenced
}

// TakeOver implements engine.Status.
func (t status) TakeOver(ctx context.Context, topic string, n int32) (next engine.Tenure, err error) {
	if err := ctx.Err(); err != nil {
		return next, translate(context.Cause(ctx))
	}
	t.s.tenures.change(topicPartition{topic, n}, func(x *tenure) {
		next = engine.NextTenure(topic, n, x.begun, time.Now().UnixMicro())
		x.begun = next.Start
	})
	return next, nil
}

// Resume drops what earlier tenures write from now on, and waits until what they
// wrote before is visible. Both cost a commit with nothing in it, once a tenure.
func (t status) Resume(ctx context.Context, of engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	p := topicPartition{of.Topic, of.Partition}
	all, ready := &t.s.tenures, false
	all.change(p, func(x *tenure) { ready = x.seen >= of.Start })
	if !ready {
		err := t.s.commit.write(ctx, func(tx) {
			all.change(p, func(x *tenure) { x.fenced = max(x.fenced, of.Start) })
		}, nil)
		if err != nil {
			return nil, err
		}
		all.change(p, func(x *tenure) { x.seen = max(x.seen, of.Start) })
	}
	return t.get(ctx, keys, true)
}
