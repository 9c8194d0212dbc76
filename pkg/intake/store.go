package intake

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// class groups records by what happens to them when the log is away.
type class uint8

const (
	critical class = iota // joins the spill buffer
	prompt                // shares its lane with critical ones: refused while any of those is spilled
	bulk                  // a lane of its own
	later                 // timers; no record
	classes  = int(later) + 1
)

func classOf(cat notify.Category) class {
	switch {
	case cat.Critical():
		return critical
	case cat.Bulk():
		return bulk
	}
	return prompt
}

// failures says of each class a request holds why its records could not be
// stored.
type failures [classes]error

func (f *failures) any() bool {
	for _, err := range f {
		if err != nil {
			return true
		}
	}
	return false
}

// plan is a checked request, ready to be stored.
type plan struct {
	s         *Service
	m         *request.Meta
	l         request.Basis
	fire      int64 // latest of its notifications; 0: now
	parts     uint16
	block     uint32
	recs      []log.Record
	classes   []class // of recs
	timers    []engine.Timer
	schedules []engine.Schedule // of timers
	campaign  *campaignPart
	fan       string // the topic of a fan-out, which recs are cut for by parts; empty: it is none

	// answer is called once, when what could be stored is stored; failed says
	// of each class why it could not.
	answer func(failed *failures) (a request.Answer, final bool, err error)
	// done gives buffers back; called only when nothing refers to them.
	// May be left out.
	done func()
}

// Release implements request.Plan.
func (p *plan) Release() {
	if p.done != nil {
		p.done()
	}
}

// Frozen implements request.Plan.
func (p *plan) Frozen() (fire int64, partitions uint16, block uint32) {
	return p.fire, p.parts, p.block
}

// Store implements request.Plan: it appends what p holds and makes the answer.
func (p *plan) Store(ctx context.Context) (a request.Answer, final, touched bool, err error) {
	s, held := p.s, false // held: the stores may still refer to the records
	defer func() {
		if !held {
			p.Release()
		}
	}()
	if len(p.recs) > 0 {
		if err := cmp.Or(check(s.gateOf(p)), p.raised()); err != nil {
			return request.Answer{}, false, false, err
		}
	}
	if len(p.timers) > 0 {
		if err := check(s.st.LaterGate); err != nil {
			return request.Answer{}, false, false, err
		}
	}
	if p.campaign != nil {
		if err := s.checkCampaignOpen(ctx, p.m, p.campaign.id); err != nil {
			return request.Answer{}, false, false, err
		}
	}
	var failed failures
	if len(p.timers) > 0 {
		failed[later] = s.putLater(ctx, p)
		held = true // near ones may be in a wheel now
	}
	if len(p.recs) > 0 {
		held = s.append(ctx, p, p.l.Accepted, &failed) || held
	}
	if p.campaign != nil && !failed.any() {
		if err := p.campaign.add(ctx, s, p.m, p.l); err != nil {
			return request.Answer{}, false, true, err
		}
	}
	a, final, err = p.answer(&failed)
	return a, final, true, err
}

// errRaised: the partitions of a topic were raised while a fan-out was cut for fewer of
// them. Nothing is stored, and at once it can be cut anew.
var errRaised = &notify.Error{Kind: notify.KindUnavailable, Code: "partitions_raised", Msg: "the log's partitions were raised while this request was read", RetryAfter: time.Second}

// raised returns errRaised where users of the fan-out have another partition by now: their
// next messages, appended there, could pass it. A repeat keeps what its first request was
// cut for, parts of which may be stored.
func (p *plan) raised() error {
	if p.fan == "" || p.l.Resumed {
		return nil
	}
	now, err := p.s.partitions(p.fan, notify.NewBase(time.Now()), 0)
	if err == nil && now != p.parts {
		err = errRaised
	}
	return err
}

const (
	retryUnavailable = 2 * time.Second // how long to tell a caller to wait
	cleanup          = 2 * time.Second // for what is still stored when the request is gone
)

// check asks a gate, if there is one.
func check(g Gate) error {
	if g == nil {
		return nil
	}
	err := g.Err()
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*notify.Error](err); ok {
		return err
	}
	return notify.Unavailable("log", 5*time.Second, err)
}

// append puts records into the log, or into the spill buffer when the log is
// away. While the buffer holds anything, critical records join it and prompt
// ones are refused: nothing overtakes a spilled message of its lane. That is
// read here every time: the drainer empties the buffer only after the log has
// acknowledged what was in it, so a request that sees it empty may append.
//
// held: the log gave an error and may still refer to the records.
func (s *Service) append(ctx context.Context, p *plan, at int64, failed *failures) (held bool) {
	var has [classes]int
	for _, c := range p.classes {
		has[c]++
	}
	if s.spilling(ctx, has[critical]+has[prompt]) {
		failed[critical] = s.spill(ctx, p.only(critical), at)
		if has[prompt] > 0 {
			failed[prompt] = notify.Unavailable("log_draining", retryUnavailable, nil)
		}
		if has[bulk] > 0 {
			failed[bulk] = s.appendBulk(ctx, p.only(bulk))
		}
		return failed[bulk] != nil
	}
	put := s.st.Log.Append
	if has[bulk] == len(p.recs) {
		put = s.appendBulk
	}
	err := put(ctx, p.recs)
	if err == nil {
		return false
	}
	for c, n := range has {
		if n > 0 {
			failed[c] = err
		}
	}
	if notify.KindOf(err) == notify.KindUnavailable && s.st.Spill != nil {
		failed[critical] = s.spill(ctx, p.only(critical), at)
	}
	return true
}

// gateOf is the gate that p's records pass: bulk ones leave the last of the room to others.
func (s *Service) gateOf(p *plan) Gate {
	if s.st.BulkGate != nil && !slices.ContainsFunc(p.classes, func(c class) bool { return c != bulk }) {
		return s.st.BulkGate
	}
	return s.st.Gate
}

// appendBulk appends records of bulk lanes once it is their turn.
func (s *Service) appendBulk(ctx context.Context, recs []log.Record) error {
	size := int64(0)
	for i := range recs {
		size += int64(len(recs[i].Value))
	}
	done, err := s.cfg.Admission.Append(ctx, notify.Marketing, size)
	if err != nil {
		return err
	}
	err = s.st.Log.Append(ctx, recs)
	done(err)
	return err
}

// putLater stores what is due later, what is for bulk lanes once it is its turn.
func (s *Service) putLater(ctx context.Context, p *plan) error {
	if slices.ContainsFunc(p.schedules, func(one engine.Schedule) bool { return !one.Category.Bulk() }) {
		return s.st.Later.Put(ctx, p.schedules, p.timers)
	}
	size := int64(0)
	for i := range p.timers {
		size += int64(len(p.timers[i].Payload))
	}
	done, err := s.cfg.Admission.Store(ctx, notify.Marketing, size)
	if err != nil {
		return err
	}
	err = s.st.Later.Put(ctx, p.schedules, p.timers)
	done(err)
	return err
}

// How long the spill buffer is waited for, and after a failure not asked.
const (
	spillLook = 250 * time.Millisecond
	spillRest = 500 * time.Millisecond
	// spillTrust is how long it is taken to hold what was last seen in it, while it
	// cannot be read: what waits there must not be overtaken because it is slow.
	spillTrust = 30 * time.Second
)

// spilling reports whether the spill buffer holds anything; n is how many
// records must not overtake it.
func (s *Service) spilling(ctx context.Context, n int) bool {
	switch {
	case s.st.Spill == nil || n == 0:
		return false
	case time.Now().UnixNano() < s.blind.Load():
		return s.lastSeenSpilling()
	}
	holds, ok := s.looks.do(ctx, s.lookAtSpill)
	if !ok {
		return s.lastSeenSpilling()
	}
	return holds
}

// lastSeenSpilling answers while the buffer cannot be read: what was seen last holds for a
// while, and then the log decides. Refusing codes because a buffer that is almost always
// empty cannot be read would be the worse failure, and so would be having each of them
// wait for a buffer that does not answer.
func (s *Service) lastSeenSpilling() bool { return time.Now().UnixNano() < s.holds.Load() }

// lookAtSpill reads whether the buffer holds anything.
func (s *Service) lookAtSpill(ctx context.Context) bool {
	now := time.Now()
	held := s.holds.Load()
	if now.UnixNano() < s.blind.Load() { // the look before this one has failed
		return s.lastSeenSpilling()
	}
	ask, stop := context.WithTimeout(ctx, spillLook)
	defer stop()
	waiting, _, _, err := s.st.Spill.Stats(ask)
	if err != nil {
		if ctx.Err() == nil {
			s.blind.Store(now.Add(spillLook + spillRest).UnixNano())
			s.cfg.Logger.Warn("spill buffer not readable", slog.Any("error", err))
		}
		return now.UnixNano() < held
	}
	if waiting > 0 {
		s.holds.Store(now.Add(spillTrust).UnixNano())
		return true
	}
	s.holds.CompareAndSwap(held, 0) // unless something was spilled meanwhile
	return false
}

// spill pushes critical records.
func (s *Service) spill(ctx context.Context, crit []log.Record, at int64) error {
	if len(crit) == 0 {
		return nil
	}
	out := make([]engine.Spilled, len(crit))
	for i, r := range crit {
		out[i] = engine.Spilled{Topic: r.Topic, Key: r.Key, Part: r.Partition, Value: r.Value, At: at}
	}
	// The caller may have given up on the log; its message is kept anyway.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	if err := s.st.Spill.Push(ctx, out, s.cfg.SpillBytes); err != nil {
		return err
	}
	s.holds.Store(time.Now().Add(spillTrust).UnixNano())
	s.cfg.Events.spilled(len(out))
	return nil
}

// only returns the records of a class.
func (p *plan) only(c class) (out []log.Record) {
	for i, r := range p.recs {
		if p.classes[i] == c {
			out = append(out, r)
		}
	}
	return out
}

// campaignPart is one request of a campaign.
type campaignPart struct {
	id                 string
	part               uint32
	accepted, rejected int
}

// campaignRoute is the scope of the keys of campaign parts.
const campaignRoute = "campaign"

// campaignKey is the key of a part. It takes the place of an Idempotency-Key,
// so that a part goes out once whatever key a client makes up for its retry.
func campaignKey(caller, campaign string, part uint32) engine.IdemKey {
	return engine.IdemKey{Caller: caller, Route: campaignRoute, Key: campaign + "/" + strconv.FormatUint(uint64(part), 10)}
}

// maxParts is how many parts a campaign may have: each is a row that is read with
// every further part, and with every look at the campaign. Parts may have as many
// receivers as a fan-out.
const maxParts = 100_000

// checkCampaign checks the form of a campaign's id, and that a part comes with
// one.
func checkCampaign(id string, hasPart bool) error {
	if id == "" {
		if hasPart {
			return invalid("required", "campaign", "a part belongs to a campaign")
		}
		return nil
	}
	ulid, ok := strings.CutPrefix(id, "cmp_")
	if base, err := notify.ParseBase(ulid); !ok || err != nil || base.String() != ulid {
		return invalid("bad_campaign", "campaign", "a campaign is cmp_ and a ULID made by the client")
	}
	return nil
}

// checkCampaignOpen refuses parts of a cancelled campaign and of one that is
// another caller's, before anything is appended.
func (s *Service) checkCampaignOpen(ctx context.Context, m *request.Meta, id string) error {
	c, ok, err := s.st.Campaigns.Get(ctx, id)
	if err != nil {
		return err
	}
	switch {
	case ok && c.Caller != m.Caller:
		return notify.NotFound("campaign")
	case c.Parts >= maxParts:
		return &notify.Error{Kind: notify.KindConflict, Code: "too_many_parts", Field: "campaign", Msg: "a campaign has at most 100,000 parts: put more receivers into a part"}
	}
	_, cancelled, err := s.st.Cancels.Get(ctx, id)
	if err != nil {
		return err
	}
	if cancelled {
		return &notify.Error{Kind: notify.KindConflict, Code: "campaign_cancelled", Field: "campaign", Msg: "the campaign was cancelled and takes no more parts"}
	}
	return nil
}

// add records a part that is durable.
func (p *campaignPart) add(ctx context.Context, s *Service, m *request.Meta, l request.Basis) error {
	return s.st.Campaigns.AddPart(ctx, p.id, m.Caller, p.part, l.Base, int64(p.accepted), int64(p.rejected), l.Accepted)
}
