package outcomehook

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// FollowGroup is the consumer group that reads notifications-outcomes.
const FollowGroup = "outcome-followers"

// FollowConfig configures a Follower. Callers, Triggers, State and Log are required.
type FollowConfig struct {
	Callers  engine.Callers
	Triggers Triggers
	// State returns the current outcome of a notification, from all stored data. It returns an
	// error of KindNotFound or KindGone for an id that is no longer stored.
	State func(ctx context.Context, id notify.ID) (notify.Outcome, error)
	// Log is the log to which the Follower appends outcomes that cannot be sent now. The Follower
	// reads these outcomes again later.
	Log Log
	// Wait is the pause after a batch of which some outcomes could not be sent yet. The Follower
	// has then appended these outcomes to the log again, and without the pause it would read them
	// again at once.
	Wait time.Duration `default:"5s"`
	// GiveUp is the age after which an outcome is dropped.
	GiveUp time.Duration `default:"24h"`
	// Told and Refused are the same as in Config. For a dropped outcome, Refused is called with the
	// code "given_up".
	Told    func(n int)
	Refused func(code string)
	Logger  *slog.Logger `default:"discard"`

	hit func(string) // killpoint.Hit, or a test's function
}

// Log appends records. A nil error means that all of them are durable.
type Log interface {
	Append(ctx context.Context, recs []log.Record) error
}

// Follower makes triggers from the outcomes in notifications-outcomes. It is the handler of the
// consumer group FollowGroup.
type Follower struct{ cfg FollowConfig }

// NewFollower returns a Follower. It returns an error if a required field is missing.
func NewFollower(cfg FollowConfig) (*Follower, error) {
	if cfg.Callers == nil || cfg.Triggers == nil || cfg.State == nil || cfg.Log == nil {
		return nil, errors.New("outcomehook: FollowConfig must have Callers, Triggers, State and Log")
	}
	cfg = setting.Fill(cfg)
	if cfg.Told == nil {
		cfg.Told = func(int) {}
	}
	if cfg.Refused == nil {
		cfg.Refused = func(string) {}
	}
	if cfg.hit == nil {
		cfg.hit = killpoint.Hit
	}
	return &Follower{cfg}, nil
}

// Assigned implements log.Handler.
func (f *Follower) Assigned(_ context.Context, tp log.TopicPartition) log.PartitionHandler {
	return &partitionFollower{f: f, tp: tp, toldBefore: map[string]*toldBefore{}}
}

// partitionFollower processes the records of one partition. The consumer group calls it from one
// goroutine at a time.
type partitionFollower struct {
	f  *Follower
	tp log.TopicPartition
	// toldBefore is used after a crash, when Handle finds triggers that were made before the
	// crash. For each caller it contains the outcomes in these triggers. Handle skips these
	// outcomes, also in later batches.
	toldBefore map[string]*toldBefore
}

// toldBefore is the content of a caller's triggers that were made before a crash. An outcome that
// was not ready before the crash is in none of these triggers, even if its place comes before the
// place in the field last.
type toldBefore struct {
	last     outcomePlace // place of the last outcome in these triggers
	outcomes map[toldKey]struct{}
	firsts   map[outcomePlace]struct{} // places of the first outcomes of these triggers
}

type toldKey struct {
	id     string
	epoch  uint16
	status string
}

// add adds a trigger with the payload p. The parameter first is the place of its first outcome.
func (b *toldBefore) add(first outcomePlace, p *Payload) {
	b.firsts[first] = struct{}{}
	for i := range p.Outcomes {
		b.outcomes[toldKey{p.Outcomes[i].ID, p.Outcomes[i].Epoch, p.Outcomes[i].Status}] = struct{}{}
	}
	if last := (outcomePlace{p.Position.Offset, p.Position.Item}); b.last.isBefore(last) {
		b.last = last
	}
}

// has reports whether the outcome o of the event e is in one of the triggers. If b is nil, there
// are no such triggers.
func (b *toldBefore) has(e *outcomeEvent, o *Outcome) bool {
	if b == nil || b.last.isBefore(e.outcomePlace) {
		return false
	}
	_, is := b.firsts[e.outcomePlace]
	if !is {
		_, is = b.outcomes[toldKey{o.ID, o.Epoch, o.Status}]
	}
	return is
}

// outcomePlace is the position of an outcome in the partition: the offset of its record and its
// index in the record.
type outcomePlace struct {
	offset int64
	item   int
}

// isBefore returns true if p comes before q.
func (p outcomePlace) isBefore(q outcomePlace) bool {
	return p.offset < q.offset || p.offset == q.offset && p.item < q.item
}

// outcomeEvent is one outcome to send: one receiver of a record.
type outcomeEvent struct {
	outcomePlace
	ended    *notify.Ended
	receiver *notify.EndedReceiver
}

// Handle implements log.PartitionHandler. It makes triggers from the records, and marks the records
// as done only when it has handled all of them. After a crash, Handle gets the same records again
// and finds the triggers that it made before: a trigger's id contains the position of its first
// outcome, and its payload contains the position of its last outcome.
func (h *partitionFollower) Handle(ctx context.Context, msgs []*log.Msg) error {
	f := h.f
	var order []string
	by := map[string][]outcomeEvent{}
	for _, m := range msgs {
		e := &notify.Ended{}
		err := json.Unmarshal(m.Value, e)
		if err == nil && e.Version > notify.EndedVersion {
			return notify.Newer("a record of "+notify.TopicOutcomes, e.Version, notify.EndedVersion) // the group stops the partition at m
		}
		if err != nil || e.Version != notify.EndedVersion {
			f.cfg.Logger.Error("cannot decode a record of outcomes; it is skipped", "topic", m.Topic, "partition", m.Partition, "offset", m.Offset, "version", e.Version, "err", err)
			f.cfg.Refused("undecodable")
			continue
		}
		if _, ok := by[e.Caller]; !ok {
			order = append(order, e.Caller)
		}
		for i := range e.Receivers {
			by[e.Caller] = append(by[e.Caller], outcomeEvent{outcomePlace{m.Offset, i}, e, &e.Receivers[i]})
		}
	}
	appendedAgain := false
	for _, caller := range order {
		left, err := h.createTriggers(ctx, caller, by[caller])
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !isRefusal(err):
			return err
		case err != nil:
			f.cfg.Refused(errorCode(err))
			f.cfg.Logger.Warn("cannot make triggers for a caller's outcomes; will try again", "caller", caller, "outcomes", len(left), "err", err)
		case len(left) == 0:
			continue
		}
		if err := f.appendAgain(ctx, left); err != nil {
			return err
		}
		appendedAgain = true
	}
	if appendedAgain { // without the pause, the appended outcomes would be read again at once, in an endless loop
		notify.Sleep(ctx, f.cfg.Wait)
	}
	for _, m := range msgs {
		m.Done()
	}
	return nil
}

// isRefusal returns true if an error concerns only one caller, so that it must not delay other
// callers.
func isRefusal(err error) bool {
	switch notify.KindOf(err) {
	case notify.KindUnavailable, notify.KindInternal:
		return false
	}
	return true
}

// createTriggers makes triggers from a caller's outcomes, in order. It returns the outcomes that
// are left because they are not ready yet. After an error, the outcomes that are in no trigger yet
// are also left.
func (h *partitionFollower) createTriggers(ctx context.Context, caller string, es []outcomeEvent) (left []outcomeEvent, err error) {
	f := h.f
	c, ok, err := f.cfg.Callers.Get(ctx, caller)
	if err != nil || !ok || !wantsAllOutcomes(&c) {
		return nil, err // the caller does not want outcomes any more
	}
	for len(es) > 0 {
		before := h.toldBefore[caller]
		if before != nil && before.last.isBefore(es[0].outcomePlace) {
			delete(h.toldBefore, caller)
			before = nil
		}
		body, n, told, early, err := f.pack(ctx, &c, es, before)
		switch {
		case err != nil:
			return append(left, es...), err
		case body == nil:
			left, es = append(left, early...), es[n:]
			continue
		}
		first := told[0]
		base := triggerBase(first.ended.At, "ended", caller, h.tp.Topic, h.tp.Partition, first.receiver.ID, first.offset, first.item)
		row, created, err := f.cfg.Triggers.RegisterInternal(ctx, caller, base, c.OutcomesURL, body, commonTrace(told, func(e *outcomeEvent) string { return e.ended.Trace }))
		if err != nil {
			return append(left, es...), err
		}
		f.cfg.hit("outcomes-before-mark")
		if created {
			f.cfg.Told(len(told))
			left, es = append(left, early...), es[n:]
			continue
		}
		was, err := readTold(row.Payload, func(p *Payload) bool {
			return p.Position != nil && !(outcomePlace{p.Position.Offset, p.Position.Item}).isBefore(first.outcomePlace)
		})
		if err != nil {
			return append(left, es...), err
		}
		if before == nil {
			before = &toldBefore{outcomes: map[toldKey]struct{}{}, firsts: map[outcomePlace]struct{}{}}
			h.toldBefore[caller] = before
		}
		before.add(first.outcomePlace, &was) // the next round omits the outcomes in was, because they are in a trigger
	}
	return left, nil
}

// pack makes one payload from outcomes at the beginning of es. The result body is the JSON of the
// payload, or nil if no outcome is to be sent now. The result n is how many outcomes at the
// beginning of es are dealt with: those in told are in the payload, and those in early are not
// ready yet. The rest of these n outcomes are never sent, or are already in triggers that were made
// before a crash (the parameter before). A payload that has an outcome up to the place before.last
// has no outcome after this place. So the outcomes after this place go into the same triggers as
// without the crash.
func (f *Follower) pack(ctx context.Context, c *engine.Caller, es []outcomeEvent, before *toldBefore) (body []byte, n int, told, early []outcomeEvent, err error) {
	p := newPacker(c.ID)
	for ; n < len(es); n++ {
		if before != nil && len(told) > 0 && !before.last.isBefore(told[0].outcomePlace) && before.last.isBefore(es[n].outcomePlace) {
			break
		}
		o, what, err := f.buildOutcome(ctx, c, &es[n])
		switch {
		case err != nil:
			return nil, 0, nil, nil, err
		case what == tellLater:
			early = append(early, es[n])
		}
		if what != tellNow || before.has(&es[n], &o) {
			continue
		}
		ok, err := p.add(o)
		if err != nil {
			return nil, 0, nil, nil, err
		}
		if !ok {
			break
		}
		told, p.Position = append(told, es[n]), &Position{Offset: es[n].offset, Item: es[n].item}
	}
	if len(told) == 0 {
		return nil, n, nil, early, nil
	}
	body, err = json.Marshal(p.Payload)
	return body, n, told, early, err
}

// tellDecision says whether an outcome is sent now.
type tellDecision uint8

const (
	// tellNot means that the outcome is never sent, for one of these reasons:
	//   - another record contains a later outcome of the receiver;
	//   - the receiver has failed, which the feed of dead letters reports;
	//   - the notification is no longer stored;
	//   - the caller did not want outcomes when the receiver ended.
	tellNot tellDecision = iota
	tellNow
	tellLater // the receipt of a call arrived before the row of the call; try again later
)

// buildOutcome returns the outcome that the caller gets for a receiver, and whether to send the
// outcome now.
func (f *Follower) buildOutcome(ctx context.Context, c *engine.Caller, e *outcomeEvent) (o Outcome, what tellDecision, err error) {
	if e.ended.At < c.OutcomesSince {
		return o, tellNot, nil
	}
	id, err := notify.ParseID(e.receiver.ID)
	if err != nil {
		f.cfg.Logger.Error("an outcome has no valid notification id and is skipped", "caller", c.ID, "err", err)
		return o, tellNot, nil
	}
	o = Outcome{
		ID: e.receiver.ID, Epoch: uint16(e.receiver.Epoch), Status: e.receiver.Status, Campaign: e.ended.Campaign, Channel: e.ended.Channel, Category: e.ended.Category,
		User: e.receiver.User, Template: e.ended.Template, Code: e.receiver.Code, Provider: e.receiver.Provider, Attempts: e.receiver.Attempts,
		Ended: time.UnixMilli(e.ended.At).UTC(), TraceID: notify.TraceID(e.ended.Trace),
	}
	if !e.receiver.Look {
		return o, tellNow, nil
	}
	now, err := f.cfg.State(ctx, id)
	switch kind := notify.KindOf(err); {
	case err == nil:
	case kind == notify.KindNotFound, kind == notify.KindGone:
		return o, tellNot, nil
	default:
		return o, tellNot, err
	}
	switch {
	case now.State.Terminal() && now.State != notify.Failed:
	case now.State.Terminal(), !e.receiver.Receipt, int(now.Epoch) > e.receiver.Epoch:
		return o, tellNot, nil // the outcome of a later epoch is in a separate record
	default:
		return o, tellLater, nil
	}
	o.Epoch, o.Status, o.Code = now.Epoch, now.State.String(), now.Code
	if now.Updated > 0 {
		o.Ended = time.UnixMilli(now.Updated).UTC()
	}
	return o, tellNow, nil
}

// appendAgain appends outcomes to the end of the topic, so that they are read again after the
// outcomes of other callers. It drops outcomes that are older than GiveUp.
func (f *Follower) appendAgain(ctx context.Context, es []outcomeEvent) error {
	oldest := time.Now().Add(-f.cfg.GiveUp).UnixMilli()
	var recs []log.Record
	for i := 0; i < len(es); {
		of := es[i].ended
		again := *of
		again.Receivers = nil
		for ; i < len(es) && es[i].ended == of; i++ {
			again.Receivers = append(again.Receivers, *es[i].receiver)
		}
		if of.At < oldest {
			f.cfg.Refused("given_up")
			f.cfg.Logger.Error("outcomes are dropped: no trigger could be made for them in time; see the earlier warnings for the cause", "caller", of.Caller, "outcomes", len(again.Receivers))
			continue
		}
		b, err := json.Marshal(again)
		if err != nil {
			return err
		}
		recs = append(recs, log.Record{Topic: notify.TopicOutcomes, Partition: 0, Key: []byte(of.Caller), Value: b})
	}
	if len(recs) == 0 {
		return nil
	}
	return f.cfg.Log.Append(ctx, recs)
}
