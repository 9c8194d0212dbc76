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

// FollowConfig of a Follower. Callers, Triggers, State and Log are required.
type FollowConfig struct {
	Callers  engine.Callers
	Triggers Triggers
	// State says what became of a notification, by all that is known of it; an id
	// that is not kept any more is an error of KindNotFound or KindGone.
	State func(ctx context.Context, id notify.ID) (notify.Outcome, error)
	// Log takes back what a caller cannot be told now.
	Log Log
	// Wait is the pause after a batch of which something was put back.
	Wait time.Duration `default:"5s"`
	// GiveUp is how long a caller is tried to be told.
	GiveUp time.Duration `default:"24h"`
	// Told, Refused: as Config's. An outcome that is given up is refused with the
	// code "given_up".
	Told    func(n int)
	Refused func(code string)
	Logger  *slog.Logger `default:"discard"`

	hit func(string) // killpoint.Hit, or a test's
}

// Log appends records; nil means every one is durable.
type Log interface {
	Append(ctx context.Context, recs []log.Record) error
}

// Follower makes triggers of what notifications-outcomes says. It is the handler
// of the group FollowGroup.
type Follower struct{ cfg FollowConfig }

// NewFollower returns a Follower.
func NewFollower(cfg FollowConfig) (*Follower, error) {
	if cfg.Callers == nil || cfg.Triggers == nil || cfg.State == nil || cfg.Log == nil {
		return nil, errors.New("outcome: Callers, Triggers, State and Log are required")
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
	return &follows{f: f, tp: tp, ahead: map[string]place{}}
}

// follows is a Follower's work on one partition.
type follows struct {
	f  *Follower
	tp log.TopicPartition
	// ahead is where the last trigger of a caller ends that was met again: it may
	// lie behind the batch it was met in.
	ahead map[string]place
}

// place is where an outcome stands in the log.
type place struct {
	offset int64
	item   int
}

// before reports whether p stands before q.
func (p place) before(q place) bool {
	return p.offset < q.offset || p.offset == q.offset && p.item < q.item
}

// event is one outcome to tell.
type event struct {
	place
	of *notify.Ended
	r  *notify.EndedReceiver
}

// Handle implements log.PartitionHandler. Triggers are named by the place of
// their first outcome and say where they end, so a batch that comes again after a
// crash meets those that were made. Only all together are the records done.
func (h *follows) Handle(ctx context.Context, msgs []*log.Msg) error {
	f := h.f
	var order []string
	by := map[string][]event{}
	for _, m := range msgs {
		e := &notify.Ended{}
		err := json.Unmarshal(m.Value, e)
		if err == nil && e.Version > notify.EndedVersion {
			return notify.Newer("a record of "+notify.TopicOutcomes, e.Version, notify.EndedVersion) // the group stops the partition at m
		}
		if err != nil || e.Version != notify.EndedVersion {
			f.cfg.Logger.Error("undecodable outcome", "topic", m.Topic, "partition", m.Partition, "offset", m.Offset, "version", e.Version, "err", err)
			f.cfg.Refused("undecodable")
			continue
		}
		if _, ok := by[e.Caller]; !ok {
			order = append(order, e.Caller)
		}
		for i := range e.Receivers {
			by[e.Caller] = append(by[e.Caller], event{place{m.Offset, i}, e, &e.Receivers[i]})
		}
	}
	back := false
	for _, caller := range order {
		left, err := h.tell(ctx, caller, by[caller])
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !refusal(err):
			return err
		case err != nil:
			f.cfg.Refused(code(err))
			f.cfg.Logger.Warn("outcomes are not told to their caller, will try again", "caller", caller, "outcomes", len(left), "err", err)
		case len(left) == 0:
			continue
		}
		if err := f.putBack(ctx, left); err != nil {
			return err
		}
		back = true
	}
	if back { // else what is put back would be read at once, again and again
		notify.Sleep(ctx, f.cfg.Wait)
	}
	for _, m := range msgs {
		m.Done()
	}
	return nil
}

// refusal reports whether an error is about one caller alone, which must hold up
// nobody else.
func refusal(err error) bool {
	switch notify.KindOf(err) {
	case notify.KindUnavailable, notify.KindInternal:
		return false
	}
	return true
}

// tell makes triggers of a caller's outcomes, in their order; left are those it
// could not, or not yet.
func (h *follows) tell(ctx context.Context, caller string, es []event) (left []event, err error) {
	f := h.f
	c, ok, err := f.cfg.Callers.Get(ctx, caller)
	if err != nil || !ok || !wants(&c) {
		return nil, err // it does not ask any more
	}
	for {
		if last, ok := h.ahead[caller]; ok {
			for len(es) > 0 && !last.before(es[0].place) {
				es = es[1:]
			}
			if len(es) > 0 {
				delete(h.ahead, caller)
			}
		}
		if len(es) == 0 {
			return left, nil
		}
		body, n, told, early, err := f.pack(ctx, &c, es)
		if err == nil {
			left = append(left, early...)
		}
		switch {
		case err != nil:
			return append(left, es...), err
		case body == nil:
			es = es[n:]
			continue
		}
		first := told[0]
		base := triggerBase(first.of.At, "ended", caller, h.tp.Topic, h.tp.Partition, first.r.ID, first.offset, first.item)
		row, created, err := f.cfg.Triggers.Own(ctx, caller, base, c.OutcomesURL, body, commonTrace(told, func(e *event) string { return e.of.Trace }))
		if err != nil {
			return append(left, es...), err
		}
		f.cfg.hit("outcomes-before-mark")
		if created {
			f.cfg.Told(len(told))
			es = es[n:]
			continue
		}
		was, err := readTold(row.Payload, func(p *Payload) bool {
			return p.Position != nil && !(place{p.Position.Offset, p.Position.Item}).before(first.place)
		})
		if err != nil {
			return append(left, es...), err
		}
		h.ahead[caller] = place{was.Position.Offset, was.Position.Item}
	}
}

// pack makes a payload of the leading outcomes: as many as fit. The first n of
// them are told in it, early, or not to be told; a nil body: none of them is.
func (f *Follower) pack(ctx context.Context, c *engine.Caller, es []event) (body []byte, n int, told, early []event, err error) {
	p := newPacker(c.ID)
	for ; n < len(es); n++ {
		o, what, err := f.outcome(ctx, c, &es[n])
		switch {
		case err != nil:
			return nil, 0, nil, nil, err
		case what == tellLater:
			early = append(early, es[n])
		}
		if what != tellNow {
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

// telling says what becomes of an outcome.
type telling uint8

const (
	tellNot   telling = iota // it goes on, has failed (which the feed tells), is not kept any more, or was not asked for then
	tellNow                  // as it is
	tellLater                // a receipt was faster than the row of its call
)

// outcome is what is told of a receiver.
func (f *Follower) outcome(ctx context.Context, c *engine.Caller, e *event) (o Outcome, what telling, err error) {
	if e.of.At < c.OutcomesSince {
		return o, tellNot, nil
	}
	id, err := notify.ParseID(e.r.ID)
	if err != nil {
		f.cfg.Logger.Error("an outcome of no notification", "caller", c.ID, "err", err)
		return o, tellNot, nil
	}
	o = Outcome{
		ID: e.r.ID, Epoch: uint16(e.r.Epoch), Status: e.r.Status, Campaign: e.of.Campaign, Channel: e.of.Channel, Category: e.of.Category,
		User: e.r.User, Template: e.of.Template, Code: e.r.Code, Provider: e.r.Provider, Attempts: e.r.Attempts,
		Ended: time.UnixMilli(e.of.At).UTC(), TraceID: notify.TraceID(e.of.Trace),
	}
	if !e.r.Look {
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
	case now.State.Terminal(), !e.r.Receipt, int(now.Epoch) > e.r.Epoch:
		return o, tellNot, nil // of another epoch, the end of that one is told
	default:
		return o, tellLater, nil
	}
	o.Epoch, o.Status, o.Code = now.Epoch, now.State.String(), now.Code
	if now.Updated > 0 {
		o.Ended = time.UnixMilli(now.Updated).UTC()
	}
	return o, tellNow, nil
}

// putBack appends outcomes again, behind everybody else's; those that are too old
// by now are given up.
func (f *Follower) putBack(ctx context.Context, es []event) error {
	oldest := time.Now().Add(-f.cfg.GiveUp).UnixMilli()
	var recs []log.Record
	for i := 0; i < len(es); {
		of := es[i].of
		again := *of
		again.Receivers = nil
		for ; i < len(es) && es[i].of == of; i++ {
			again.Receivers = append(again.Receivers, *es[i].r)
		}
		if of.At < oldest {
			f.cfg.Refused("given_up")
			f.cfg.Logger.Error("outcomes are given up: their caller could not be told in time", "caller", of.Caller, "outcomes", len(again.Receivers))
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
