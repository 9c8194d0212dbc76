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

// handOn sends the records and timers that follow from a finished row: retries and failures to the
// log, waits to the timer store. The records and timers depend only on the row and the envelope. So
// a repeat after a crash sends the same records and timers under the same keys.
func (j *job) handOn(ctx context.Context, row *notify.Row) error {
	// In a strict lane, add the holds of the waiting receivers first. Otherwise a receiver whose
	// record is sent below could end and remove its hold before updateHolds adds the hold.
	if err := j.updateHolds(ctx, row); err != nil {
		return err
	}
	tells := j.p.w.cfg.HasOutcomesURL != nil && j.p.w.cfg.HasOutcomesURL(j.env.Caller)
	leads := func(x notify.Exception) bool { // the receiver will be tried again, or its failure is reported
		return x.State == notify.Deferred || x.State.InFailedFeed(j.env.Category)
	}
	if !tells && !leads(row.Default) && !slices.ContainsFunc(row.Exceptions, leads) {
		j.p.forgetJob(j)
		return nil
	}
	recs, timers, parked := j.deriveHandOn(row)
	if tells {
		recs = append(recs, j.endedRecords(row)...)
	}
	span := j.p.w.cfg.Tracer.Start("hand on", traceOf(&j.env))
	span.Int("notifyd.records", len(recs))
	span.Int("notifyd.parked", len(timers))
	defer span.End()
	err := j.p.w.retryUntil(ctx, "log", func() error {
		if len(recs) == 0 {
			return nil
		}
		return j.p.w.cfg.Log.Append(ctx, recs)
	})
	killpoint.Hit("retries-before-parked")
	if err == nil && len(timers) > 0 {
		err = j.p.w.park(ctx, timers, parked)
	}
	j.p.forgetJob(j)
	return err
}

// handOnGroup collects receivers that continue together, in one or more envelopes.
type handOnGroup struct {
	groupKey
	cause string
	w     notify.ReceiverWriter
	first uint32
}

// groupKey is what the receivers of a group have in common.
type groupKey struct {
	retry       bool
	wake        int64
	causePrefix string // says which earlier calls were made: "", causeCalled, or causeMaybe with doubtMarks
	// ownSlot means that the receiver has a slot in a campaign with a rate, and that the field wake
	// is the time of this slot. If ownSlot is false, a receiver of a campaign with a rate asks for
	// a slot at that time.
	ownSlot bool
}

// deriveHandOn returns the records and timers that follow from a finished row. The result parked is
// the number of receivers in these timers.
func (j *job) deriveHandOn(row *notify.Row) (recs []log.Record, timers []engine.Timer, parked int) {
	w := j.p.w
	e := &j.env
	var groups []*handOnGroup
	flush := func(g *handOnGroup) {
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
		outcomes := row.ExceptionsAt(pos)
		if len(outcomes) == 0 {
			outcomes = []notify.Exception{row.Default}
		}
		var receiverKey groupKey
		var code string
		for i := range outcomes {
			x := &outcomes[i]
			if x.Provider != "" { // one of the receiver's addresses was called
				receiverKey.causePrefix = max(receiverKey.causePrefix, causeCalled)
			}
			if x.State == notify.Deferred {
				// All deferred addresses of a receiver continue together, at the latest of their
				// wake times.
				receiverKey.retry = receiverKey.retry || x.Retry
				receiverKey.wake = max(receiverKey.wake, x.Wake)
				receiverKey.causePrefix = max(receiverKey.causePrefix, causePrefix(e, x)) // as strings, "" < "called:" < "maybe:" < "maybe:~"
				code = x.Code
				receiverKey.ownSlot = code == codeCampaignRate
			}
		}
		if receiverKey.wake != 0 {
			var g *handOnGroup
			if k := slices.IndexFunc(groups, func(g *handOnGroup) bool { return g.groupKey == receiverKey }); k >= 0 {
				g = groups[k]
			} else {
				g = &handOnGroup{groupKey: receiverKey, cause: receiverKey.causePrefix + code, first: rec.Index}
				groups = append(groups, g)
			}
			out := rec
			if len(outcomes) > 1 || outcomes[0].Of > 1 {
				out.Address = j.failedTargets(targets, &rec, outcomes)
			}
			if g.w.Count() > 0 && g.w.Len()+len(out.User)+len(out.Address)+len(out.Variables)+16 > room {
				flush(g)
				g.w = notify.ReceiverWriter{}
				g.first = rec.Index
			}
			g.w.Append(out)
		}
		if x := bestOutcome(outcomes); x.State.InFailedFeed(e.Category) && !reachedBefore(&rec) {
			recs = append(recs, j.failureRecord(row, &rec, x))
		}
	}
	for _, g := range groups {
		flush(g)
	}
	return recs, timers, parked
}

// failedTargets returns an address field for the next attempt. It contains the addresses to try
// again. An address that was reached or may have been reached is not called again: the field
// contains only its number (Addr). The last attempt needs these numbers to know that the receiver
// has not failed.
func (j *job) failedTargets(buf []notify.Target, rec *notify.Receiver, ex []notify.Exception) []byte {
	all, err := notify.Targets(buf[:0], rec.Address)
	if err != nil || len(all) == 0 {
		if prefs := j.p.w.cfg.Prefs; prefs.Decide(rec.User, j.env.Channel, j.env.Category, time.Time{}).Action == users.Unknown {
			j.p.fetchProfiles(j.env.Channel, [][]byte{rec.User})
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
		return rec.Address // no address to try again was found; read the profile again when the receiver is due
	}
	return notify.AppendTargets(nil, on)
}

// causePrefix returns the first part of a derived envelope's cause. It says whether calls were
// made, and whether the provider may have processed one of them. It covers the calls that the cause
// of e describes, and the call with the outcome x.
func causePrefix(e *notify.Envelope, x *notify.Exception) string {
	n := doubtCount(e.Cause)
	switch {
	case mayBeTaken(x) && !x.Retry && x.Code != codeHandedOver: // this outcome was parked by parkAmbiguous
		return causeMaybe + strings.Repeat(doubtMark, n+1)
	case mayBeTaken(x), strings.HasPrefix(e.Cause, causeMaybe):
		return causeMaybe + strings.Repeat(doubtMark, n)
	case x.Provider != "" || strings.HasPrefix(e.Cause, causeCalled):
		return causeCalled
	}
	return ""
}

// timerID returns the id of a derived envelope in the timer store. The id depends only on the key,
// so parking the envelope twice stores one timer.
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

// failureRecord returns the record for notifications-failed about a receiver with outcome x.
func (j *job) failureRecord(row *notify.Row, rec *notify.Receiver, x *notify.Exception) log.Record {
	e := &j.env
	earlier := int(e.Attempt) + doubtCount(e.Cause)
	class, calls := x.Class.String(), earlier+1
	switch x.Class {
	case notify.ClassAccepted: // no call was made, or no answer of a call is known
		class, calls = notify.FailureUndeliverable, earlier
	case notify.ClassReceipt: // a receipt reported the failure of an earlier call
		class, calls = notify.ClassPermanent.String(), max(earlier, 1)
	case notify.ClassAmbiguous: // FAILED after a panic; the class of an UNKNOWN receiver is set below
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
	b, _ := json.Marshal(f) // cannot fail: it contains only strings and numbers
	return log.Record{Topic: notify.TopicFailed, Key: rec.User, Value: b, Partition: -1}
}

// countResent counts a receiver that may get the message twice: the provider may have processed an
// earlier call, and the receiver is called again.
func (j *job) countResent() {
	j.mu.Lock()
	j.resent++
	j.mu.Unlock()
}

// endedRecords returns the records for notifications-outcomes. They contain every receiver of a
// finished row that is not tried again. Receivers in the feed of failures are left out, because
// that feed has its own topic. endedRecords uses only the row and the envelope, so that a repeat
// after a crash gives equal records.
func (j *job) endedRecords(row *notify.Row) (recs []log.Record) {
	e := &j.env
	out := notify.Ended{
		Version: notify.EndedVersion, Caller: e.Caller, Campaign: e.Campaign, Channel: e.Channel.String(), Category: e.Category.String(),
		Template: e.Content.Template, Trace: e.Trace, At: row.Updated,
	}
	flush := func() {
		if len(out.Receivers) == 0 {
			return
		}
		b, _ := json.Marshal(out) // cannot fail: it contains only strings and numbers
		recs = append(recs, log.Record{Topic: notify.TopicOutcomes, Partition: 0, Key: []byte(e.Caller), Value: b})
		out.Receivers = out.Receivers[:0]
	}
	rd := notify.ReadReceivers(e.Receivers)
	var rec notify.Receiver
	for pos := uint32(0); rd.Next(&rec); pos++ {
		outcomes := row.ExceptionsAt(pos)
		if len(outcomes) == 0 {
			outcomes = []notify.Exception{row.Default}
		}
		r, ok := endedReceiver(e.Category, outcomes, reachedBefore(&rec))
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

// A strict lane keeps for each user a queue of the notifications that wait (see store.Holds). The
// rules:
//
//   - Before a call, when the envelope has its turn: if another notification is at the head of the
//     user's queue, the receiver is deferred and joins the queue.
//   - A receiver with a deferred outcome joins the queue or keeps its place. A receiver with any
//     other outcome leaves the queue.
//   - Each change of a queue is durable before handOn sends the receiver's next envelope. Otherwise
//     the receiver could end and leave the queue before it has joined the queue.
//   - Each change is also durable before the record is marked as done, and before the next envelope
//     gets its turn.
//
// The queues are durable because no other data shows whether a message of a user waits: rows are
// found by chunk, timers by time. After a crash before the record is marked as done, handOn is
// repeated. By then the receivers may have ended already; see dropStaleHolds.

// updateHolds makes the queues of the users match a finished row: it adds the deferred receivers
// and removes those that have ended. Only strict lanes have these queues.
func (j *job) updateHolds(ctx context.Context, row *notify.Row) error {
	cfg := &j.p.w.cfg
	if cfg.Order != Strict {
		return nil
	}
	var add, remove []engine.Hold
	e := &j.env
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	for pos := uint32(0); rd.Next(&rec); pos++ {
		outcomes := row.ExceptionsAt(pos)
		if len(outcomes) == 0 {
			outcomes = []notify.Exception{row.Default}
		}
		h := engine.Hold{Lane: cfg.Lane.String(), User: string(rec.User), ID: e.ID(rec.Index), Epoch: e.Epoch}
		for i := range outcomes {
			if outcomes[i].State == notify.Deferred {
				h.Wake = max(h.Wake, outcomes[i].Wake)
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
	return j.p.w.retryUntil(ctx, "holds", func() error { return cfg.Holds.Update(ctx, add, remove) })
}

// dropStaleHolds removes the holds that a repeated handOn added for receivers that had already
// ended. It reads the rows after handOn has added the holds. So a receiver that ends after this read
// removes its own hold.
func (j *job) dropStaleHolds(ctx context.Context, row *notify.Row) error {
	cfg := &j.p.w.cfg
	if cfg.Order != Strict {
		return nil
	}
	var rows []notify.Row
	err := j.p.w.retryUntil(ctx, "status store", func() (err error) { rows, err = cfg.Status.Chunk(ctx, row.Key.Chunk); return err })
	if err != nil {
		return err
	}
	var remove []engine.Hold
	e := &j.env
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	for rd.Next(&rec) {
		if hasEnded(rows, row.Key.Epoch, rec.Index) {
			remove = append(remove, engine.Hold{Lane: cfg.Lane.String(), User: string(rec.User), ID: e.ID(rec.Index), Epoch: e.Epoch})
		}
	}
	if len(remove) == 0 {
		return nil
	}
	return j.p.w.retryUntil(ctx, "holds", func() error { return cfg.Holds.Update(ctx, nil, remove) })
}

// hasEnded reports whether a receiver has a terminal outcome in the row of its latest envelope.
func hasEnded(rows []notify.Row, epoch uint16, index uint32) bool {
	var last *notify.Row
	var lastPos uint32
	for i := range rows {
		r := &rows[i]
		if r.Key.Epoch != epoch || r.Key.Kind != notify.RowOutcome || len(r.Index) == 0 {
			continue
		}
		pos, ok := r.PosOf(index)
		if ok && (last == nil || r.Key.Attempt > last.Key.Attempt || r.Key.Attempt == last.Key.Attempt && r.Key.Deferrals > last.Key.Deferrals) {
			last, lastPos = r, pos
		}
	}
	if last == nil || !last.Done {
		return false
	}
	ex := last.ExceptionsAt(lastPos)
	if len(ex) == 0 {
		return last.Default.State != notify.Deferred
	}
	return !slices.ContainsFunc(ex, func(x notify.Exception) bool { return x.State == notify.Deferred })
}
