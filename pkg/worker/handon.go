package worker

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/pkg/users"
)

// handOn gives away what a finished row says goes on: retries, waits and
// failures. It is derived from the row alone, so a repeat after a crash hands on
// the same things under the same keys.
func (j *job) handOn(ctx context.Context, row *notify.Row) error {
	// Before what goes on can end and take its hold away.
	if err := j.hold(ctx, row); err != nil {
		return err
	}
	tells := j.p.w.cfg.Tells != nil && j.p.w.cfg.Tells(j.env.Caller)
	leads := func(x notify.Exception) bool { // on, or to the failed feed
		return x.State == notify.Deferred || x.State.InFailedFeed(j.env.Category)
	}
	if !tells && !leads(row.Default) && !slices.ContainsFunc(row.Exceptions, leads) {
		j.p.forget(j)
		return nil
	}
	recs, timers, parked := j.derive(row)
	if tells {
		recs = append(recs, j.ended(row)...)
	}
	span := j.p.w.cfg.Tracer.Start("hand on", traceOf(&j.env))
	span.Int("notifyd.records", len(recs))
	span.Int("notifyd.parked", len(timers))
	defer span.End()
	err := j.p.w.until(ctx, "log", func() error {
		if len(recs) == 0 {
			return nil
		}
		return j.p.w.cfg.Log.Append(ctx, recs)
	})
	killpoint.Hit("retries-before-parked")
	if err == nil && len(timers) > 0 {
		err = j.p.w.park(ctx, timers, parked)
	}
	j.p.forget(j)
	return err
}

// group is receivers that go on together, in one envelope or more.
type group struct {
	goesOn
	cause string
	w     notify.ReceiverWriter
	first uint32
}

// goesOn is what the receivers of a group have in common.
type goesOn struct {
	retry bool
	wake  int64
	calls string // earlier calls: "", causeCalled, or causeMaybe and its doubtMarks
	slot  bool   // wake is the receiver's own slot of a campaign with a rate, and not when to ask for one
}

// derive walks the receivers beside their outcomes; parked are those of timers.
func (j *job) derive(row *notify.Row) (recs []log.Record, timers []engine.Timer, parked int) {
	w := j.p.w
	e := &j.env
	var groups []*group
	flush := func(g *group) {
		d := *e
		d.Count, d.Receivers = g.w.Count(), g.w.Bytes()
		d.First, d.NotBefore, d.Cause = g.first, g.wake, g.cause
		d.Parent = e.Parent
		if !e.Derived() {
			d.Parent = row.Digest
		}
		topic := w.cfg.Lane.Topic()
		if g.retry {
			d.Attempt++
			d.Deferrals = 0
			topic = w.cfg.Lane.DLQTopic()
		} else {
			d.Deferrals++
			if w.cfg.Role == Retries {
				topic = w.cfg.Lane.DLQTopic()
			}
		}
		value := notify.AppendEnvelope(nil, &d)
		if g.retry && g.wake-time.Now().UnixMilli() <= w.cfg.Hold.Milliseconds() {
			recs = append(recs, log.Record{Topic: topic, Partition: j.msg.Partition, Value: value})
		} else {
			timers = append(timers, engine.Timer{FireAt: g.wake, ID: timerID(d.Key()), Kind: timer.KindEnvelope, Target: topic, Payload: value})
			parked += int(d.Count)
		}
	}
	room := w.cfg.MaxEnvelope
	if e.Count > 0 {
		empty := *e
		empty.Receivers, empty.Count = nil, 0
		room -= len(notify.AppendEnvelope(nil, &empty)) + 64
	}
	rd := notify.ReadReceivers(e.Receivers)
	var rec notify.Receiver
	var targets []notify.Target
	for pos := uint32(0); rd.Next(&rec); pos++ {
		ex := row.At(pos)
		if len(ex) == 0 {
			ex = []notify.Exception{row.Default}
		}
		var on goesOn
		var code string
		for i := range ex {
			x := &ex[i]
			if x.Provider != "" { // of whichever address
				on.calls = max(on.calls, causeCalled)
			}
			if x.State == notify.Deferred {
				// All of its addresses go on together, at the last one's time.
				on.retry = on.retry || x.Retry
				on.wake = max(on.wake, x.Wake)
				on.calls = max(on.calls, calls(e, x)) // "" < called: < maybe: < maybe:~
				code = x.Code
				on.slot = code == codeCampaignRate
			}
		}
		if on.wake != 0 {
			var g *group
			if k := slices.IndexFunc(groups, func(g *group) bool { return g.goesOn == on }); k >= 0 {
				g = groups[k]
			} else {
				g = &group{goesOn: on, cause: on.calls + code, first: rec.Index}
				groups = append(groups, g)
			}
			out := rec
			if len(ex) > 1 || ex[0].Of > 1 {
				out.Address = j.failedTargets(targets, &rec, ex)
			}
			if g.w.Count() > 0 && g.w.Len()+len(out.User)+len(out.Address)+len(out.Variables)+16 > room {
				flush(g)
				g.w = notify.ReceiverWriter{}
				g.first = rec.Index
			}
			g.w.Append(out)
		}
		if x := best(ex); x.State.InFailedFeed(e.Category) && !reached(&rec) {
			recs = append(recs, j.failure(row, &rec, x))
		}
	}
	for _, g := range groups {
		flush(g)
	}
	return recs, timers, parked
}

// failedTargets is the address field that names just the addresses that go on,
// and, without the address, those that were reached or may have been: the last
// attempt must know that the receiver has not failed.
func (j *job) failedTargets(buf []notify.Target, rec *notify.Receiver, ex []notify.Exception) []byte {
	all, err := notify.Targets(buf[:0], rec.Address)
	if err != nil || len(all) == 0 {
		if prefs := j.p.w.cfg.Prefs; prefs.Decide(rec.User, j.env.Channel, j.env.Category, time.Time{}).Action == users.Unknown {
			j.p.fetch(j.env.Channel, [][]byte{rec.User})
		}
		all = j.p.w.cfg.Prefs.Addresses(buf[:0], rec.User, j.env.Channel)
	}
	var on []notify.Target
	for _, t := range all {
		if len(t.Address) == 0 {
			on = append(on, t)
		}
	}
	marks := len(on)
	for _, x := range ex {
		if x.State == notify.Sent || x.State == notify.Delivered || x.State == notify.Unknown {
			on = append(on, notify.Target{Addr: x.Addr, Of: x.Of})
			marks++
			continue
		}
		if x.State != notify.Deferred {
			continue
		}
		if i := slices.IndexFunc(all, func(t notify.Target) bool { return t.Addr == x.Addr }); i >= 0 {
			on = append(on, all[i])
		}
	}
	if len(on) == marks {
		return rec.Address // resolved again at its time
	}
	return notify.AppendTargets(nil, on)
}

// calls is what the cause of a derived envelope says of calls made so far.
func calls(e *notify.Envelope, x *notify.Exception) string {
	n := doubts(e.Cause)
	switch {
	case mayBeTaken(x) && !x.Retry && x.Code != codeHandedOver: // put off by doubt
		return causeMaybe + strings.Repeat(doubtMark, n+1)
	case mayBeTaken(x), strings.HasPrefix(e.Cause, causeMaybe):
		return causeMaybe + strings.Repeat(doubtMark, n)
	case x.Provider != "" || strings.HasPrefix(e.Cause, causeCalled):
		return causeCalled
	}
	return ""
}

// timerID names a derived envelope in the timer store: parked twice, it is one.
func timerID(k notify.RowKey) []byte {
	b := make([]byte, 0, 32)
	b = append(b, k.Chunk.Base[:]...)
	b = binary.BigEndian.AppendUint16(b, k.Chunk.Partition)
	b = binary.BigEndian.AppendUint32(b, k.Chunk.Block)
	b = binary.BigEndian.AppendUint16(b, k.Epoch)
	b = binary.BigEndian.AppendUint16(b, k.Attempt)
	b = binary.BigEndian.AppendUint16(b, k.Deferrals)
	return binary.BigEndian.AppendUint32(b, k.First)
}

func (j *job) failure(row *notify.Row, rec *notify.Receiver, x *notify.Exception) log.Record {
	e := &j.env
	earlier := int(e.Attempt) + doubts(e.Cause)
	class, calls := x.Class.String(), earlier+1
	switch x.Class {
	case notify.ClassAccepted: // no call was made, or none is known to have been answered
		class, calls = notify.FailureUndeliverable, earlier
	case notify.ClassReceipt: // of an earlier call
		class, calls = notify.ClassPermanent.String(), max(earlier, 1)
	case notify.ClassAmbiguous: // a panic; the class is that of UNKNOWN alone
		class = notify.FailureUndeliverable
	}
	if x.State == notify.Unknown {
		class = notify.ClassAmbiguous.String()
	}
	f := notify.Failure{
		Version: 1, ID: e.ID(rec.Index).String(), Epoch: int(e.Epoch), Caller: e.Caller, Campaign: e.Campaign,
		Channel: e.Channel.String(), Category: e.Category.String(), User: string(rec.User),
		Template: e.Content.Template, Class: class, Code: x.Code, Provider: x.Provider, Attempts: calls,
		Accepted: e.Accepted, Failed: row.Updated, Expires: e.Expires,
		Trace: e.Trace,
		Chunk: chunkName(e.Chunk), Topic: j.msg.Topic, Partition: j.msg.Partition, Offset: j.msg.Offset,
	}
	b, _ := json.Marshal(f) // of strings and numbers: cannot fail
	return log.Record{Topic: notify.TopicFailed, Key: rec.User, Value: b, Partition: -1}
}

func (j *job) ambiguous() {
	j.mu.Lock()
	j.resent++
	j.mu.Unlock()
}

// ended is what notifications-outcomes is told of a finished row: every receiver
// that goes on nowhere and is not told to the failed feed, which has its own topic.
// Like all that is handed on it is derived from the row alone: told again after a
// crash, it is the same.
func (j *job) ended(row *notify.Row) (recs []log.Record) {
	e := &j.env
	out := notify.Ended{
		Version: notify.EndedVersion, Caller: e.Caller, Campaign: e.Campaign, Channel: e.Channel.String(), Category: e.Category.String(),
		Template: e.Content.Template, Trace: e.Trace, At: row.Updated,
	}
	flush := func() {
		if len(out.Receivers) == 0 {
			return
		}
		b, _ := json.Marshal(out) // of strings and numbers: cannot fail
		recs = append(recs, log.Record{Topic: notify.TopicOutcomes, Partition: 0, Key: []byte(e.Caller), Value: b})
		out.Receivers = out.Receivers[:0]
	}
	rd := notify.ReadReceivers(e.Receivers)
	var rec notify.Receiver
	for pos := uint32(0); rd.Next(&rec); pos++ {
		ex := row.At(pos)
		if len(ex) == 0 {
			ex = []notify.Exception{row.Default}
		}
		r, ok := endOf(e.Category, ex, reached(&rec))
		if !ok {
			continue
		}
		r.ID, r.Epoch, r.User = e.ID(rec.Index).String(), int(e.Epoch), string(rec.User)
		if r.Provider != "" {
			r.Attempts = int(e.Attempt) + 1
		}
		if out.Receivers = append(out.Receivers, r); len(out.Receivers) == notify.MaxEnded {
			flush()
		}
	}
	flush()
	return recs
}

// A strict lane keeps a queue per user of the notifications that wait (see
// store.Holds). The rules:
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
