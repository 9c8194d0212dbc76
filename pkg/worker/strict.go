package worker

import (
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A strict lane keeps a queue per user of the notifications that wait (see
// engine.Holds). The rules:
//
//   - before a call, in its turn: who finds another at the head of its user's
//     queue is deferred, and joins the queue;
//   - an outcome that waits joins the queue, or keeps its place; any other
//     leaves it. That is durable before the outcome is handed on, so before
//     the envelope that may end the waiting exists, and before the record is
//     marked and the turn passed on.
//
// The queues are durable because nothing else answers "does a message of this
// user wait?": rows are found by chunk, timers by time. A crash before the mark
// repeats a hand-on, perhaps after what it handed on has ended; see letGo.

// queues reads who waits, for the users of part i. Nil: nobody, or not strict.
func (r *round) queues(i int) (map[string]engine.Hold, bool) {
	cfg := &r.w.cfg
	if cfg.Order != Strict || cfg.Role != First {
		return nil, true
	}
	p := r.parts[i]
	var users []string
	rd, rec := p.rd, notify.Receiver{}
	for pos := p.lo; pos < p.hi && rd.Next(&rec); pos++ {
		users = append(users, string(rec.User))
	}
	var all [][]engine.Hold
	err := r.w.until(p.job.p.ctx, "holds", func() (err error) {
		all, err = cfg.Holds.Get(p.job.p.ctx, cfg.Lane.String(), users)
		return err
	})
	if err != nil {
		return nil, false
	}
	var heads map[string]engine.Hold
	for k, q := range all {
		if len(q) > 0 {
			if heads == nil {
				heads = map[string]engine.Hold{}
			}
			heads[users[k]] = q[0]
		}
	}
	return heads, true
}

// behind defers a receiver whose user has another message at the head.
func (r *round) behind(part int, pos uint32, rec *notify.Receiver, e *notify.Envelope, now time.Time) bool {
	head, ok := r.heads[string(rec.User)]
	if !ok || head.ID == e.ID(rec.Index) && head.Epoch == e.Epoch {
		return false
	}
	wake := roundUp(time.UnixMilli(max(head.Wake, now.UnixMilli())).Add(time.Second), time.Second)
	if e.Expires != 0 {
		wake = min(wake, e.Expires) // to be dropped then
	}
	r.decided(part, pos, notify.Deferred, "behind", wake)
	return true
}

// hold makes the queues say what a finished row says.
func (j *job) hold(ctx context.Context, row *notify.Row) error {
	cfg := &j.p.w.cfg
	if cfg.Order != Strict {
		return nil
	}
	var add, remove []engine.Hold
	e := &j.env
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	for pos := uint32(0); rd.Next(&rec); pos++ {
		ex := row.At(pos)
		if len(ex) == 0 {
			ex = []notify.Exception{row.Default}
		}
		h := engine.Hold{Lane: cfg.Lane.String(), User: string(rec.User), ID: e.ID(rec.Index), Epoch: e.Epoch}
		for i := range ex {
			if ex[i].State == notify.Deferred {
				h.Wake = max(h.Wake, ex[i].Wake)
			}
		}
		if h.Wake != 0 {
			add = append(add, h)
		} else if e.Derived() {
			remove = append(remove, h)
		}
	}
	if len(add)+len(remove) == 0 {
		return nil
	}
	return j.p.w.until(ctx, "holds", func() error { return cfg.Holds.Update(ctx, add, remove) })
}

// letGo takes back the holds that a repeated hand-on has added for what has ended
// since. It looks after they were added: what ends later removes its own.
func (j *job) letGo(ctx context.Context, row *notify.Row) error {
	cfg := &j.p.w.cfg
	if cfg.Order != Strict {
		return nil
	}
	var rows []notify.Row
	err := j.p.w.until(ctx, "status store", func() (err error) { rows, err = cfg.Status.Chunk(ctx, row.Key.Chunk); return err })
	if err != nil {
		return err
	}
	var remove []engine.Hold
	e := &j.env
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	for rd.Next(&rec) {
		if ended(rows, row.Key.Epoch, rec.Index) {
			remove = append(remove, engine.Hold{Lane: cfg.Lane.String(), User: string(rec.User), ID: e.ID(rec.Index), Epoch: e.Epoch})
		}
	}
	if len(remove) == 0 {
		return nil
	}
	return j.p.w.until(ctx, "holds", func() error { return cfg.Holds.Update(ctx, nil, remove) })
}

// ended reports whether the last envelope that a receiver was handed on to has
// an outcome for it that goes no further.
func ended(rows []notify.Row, epoch uint16, index uint32) bool {
	var last *notify.Row
	var at uint32
	for i := range rows {
		r := &rows[i]
		if r.Key.Epoch != epoch || r.Key.Kind != notify.RowOutcome || len(r.Index) == 0 {
			continue
		}
		pos, ok := r.PosOf(index)
		if ok && (last == nil || r.Key.Attempt > last.Key.Attempt || r.Key.Attempt == last.Key.Attempt && r.Key.Deferrals > last.Key.Deferrals) {
			last, at = r, pos
		}
	}
	if last == nil || !last.Done {
		return false
	}
	ex := last.At(at)
	if len(ex) == 0 {
		return last.Default.State != notify.Deferred
	}
	return !slices.ContainsFunc(ex, func(x notify.Exception) bool { return x.State == notify.Deferred })
}
