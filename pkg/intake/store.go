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

// storeClass groups records by what happens to them while the log is down.
type storeClass uint8

const (
	classCritical storeClass = iota // joins the spill buffer
	classPrompt                     // shares its lane with critical records: refused while a critical record is spilled
	classBulk                       // has a lane of its own
	classLater                      // timers; no record
	classCount    = int(classLater) + 1
)

func classOf(cat notify.Category) storeClass {
	switch {
	case cat.Critical():
		return classCritical
	case cat.Bulk():
		return classBulk
	}
	return classPrompt
}

// failures holds, for each class of a request, why its records could not be stored.
type failures [classCount]error

func (f *failures) any() bool {
	for _, err := range f {
		if err != nil {
			return true
		}
	}
	return false
}

// storePlan is a checked request, ready to be stored. It implements request.Plan.
type storePlan struct {
	s           *Service
	m           *request.Meta
	basis       request.Basis
	fire        int64 // latest fire time of its notifications; 0: now
	parts       uint16
	block       uint32
	recs        []log.Record
	classes     []storeClass // of recs
	timers      []engine.Timer
	schedules   []engine.Schedule // of timers
	campaign    *campaignPart
	fanoutTopic string // topic of a fan-out, whose recs are split for parts partitions; empty: no fan-out

	// answer is called once, after Store has stored what it could. failed says for each class why
	// it could not be stored.
	answer func(failed *failures) (a request.Answer, final bool, err error)
	// done returns buffers to their pools. It is called only when no store refers to them any more.
	// It may be nil.
	done func()
}

// Release implements request.Plan.
func (p *storePlan) Release() {
	if p.done != nil {
		p.done()
	}
}

// Frozen implements request.Plan.
func (p *storePlan) Frozen() (fire int64, partitions uint16, block uint32) {
	return p.fire, p.parts, p.block
}

// Store implements request.Plan: it stores what p holds and makes the answer.
func (p *storePlan) Store(ctx context.Context) (a request.Answer, final, touched bool, err error) {
	s, held := p.s, false // held: the stores may still refer to the records' buffers
	defer func() {
		if !held {
			p.Release()
		}
	}()
	if len(p.recs) > 0 {
		if err := cmp.Or(checkGate(s.gateOf(p)), p.checkPartitionsRaised()); err != nil {
			return request.Answer{}, false, false, err
		}
	}
	if len(p.timers) > 0 {
		if err := checkGate(s.stores.LaterGate); err != nil {
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
		failed[classLater] = s.storeLater(ctx, p)
		held = true // near timers may be in a wheel now, which keeps their payloads
	}
	if len(p.recs) > 0 {
		held = s.appendRecords(ctx, p, p.basis.Accepted, &failed) || held
	}
	if p.campaign != nil && !failed.any() {
		if err := p.campaign.record(ctx, s, p.m, p.basis); err != nil {
			return request.Answer{}, false, true, err
		}
	}
	a, final, err = p.answer(&failed)
	return a, final, true, err
}

// errPartitionsRaised: the partitions of a topic were raised while a fan-out was split for the old
// number. Nothing is stored, and the fan-out can be split again at once.
var errPartitionsRaised = &notify.Error{Kind: notify.KindUnavailable, Code: "partitions_raised", Msg: "the log's partitions were raised while this request was read", RetryAfter: time.Second}

// checkPartitionsRaised returns errPartitionsRaised if users of the fan-out belong to another
// partition now: their next messages, appended there, could overtake it. A repeat keeps the
// partition count of its first request, parts of which may be stored.
func (p *storePlan) checkPartitionsRaised() error {
	if p.fanoutTopic == "" || p.basis.Resumed {
		return nil
	}
	now, err := p.s.partitions(p.fanoutTopic, notify.NewBase(time.Now()), 0)
	if err == nil && now != p.parts {
		err = errPartitionsRaised
	}
	return err
}

const (
	retryUnavailable = 2 * time.Second // how long a caller is told to wait
	spillTimeout     = 2 * time.Second // limit for spilling, which goes on after the caller gave up
)

// checkGate returns the error of a gate. A nil gate is open.
func checkGate(g Gate) error {
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

// appendRecords puts records into the log, or critical ones into the spill buffer while the log is
// down. While the buffer holds anything, critical records join it and prompt ones are refused, so
// that nothing overtakes a spilled message of its lane. The buffer is read for every request. The
// drainer empties it only after the log has acknowledged its records, so a request that sees it
// empty may append.
//
// held: the log returned an error and may still refer to the records.
func (s *Service) appendRecords(ctx context.Context, p *storePlan, at int64, failed *failures) (held bool) {
	var has [classCount]int
	for _, c := range p.classes {
		has[c]++
	}
	if s.isSpilling(ctx, has[classCritical]+has[classPrompt]) {
		failed[classCritical] = s.spillCritical(ctx, p.recordsOf(classCritical), at)
		if has[classPrompt] > 0 {
			failed[classPrompt] = notify.Unavailable("log_draining", retryUnavailable, nil)
		}
		if has[classBulk] > 0 {
			failed[classBulk] = s.appendBulk(ctx, p.recordsOf(classBulk))
		}
		return failed[classBulk] != nil
	}
	put := s.stores.Log.Append
	if has[classBulk] == len(p.recs) {
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
	if notify.KindOf(err) == notify.KindUnavailable && s.stores.Spill != nil {
		failed[classCritical] = s.spillCritical(ctx, p.recordsOf(classCritical), at)
	}
	return true
}

// gateOf returns the gate of p's records. Bulk records leave the last of the room to others.
func (s *Service) gateOf(p *storePlan) Gate {
	if s.stores.BulkGate != nil && !slices.ContainsFunc(p.classes, func(c storeClass) bool { return c != classBulk }) {
		return s.stores.BulkGate
	}
	return s.stores.Gate
}

// appendBulk appends records of bulk lanes when their turn has come.
func (s *Service) appendBulk(ctx context.Context, recs []log.Record) error {
	size := int64(0)
	for i := range recs {
		size += int64(len(recs[i].Value))
	}
	done, err := s.cfg.Admission.Append(ctx, notify.Marketing, size)
	if err != nil {
		return err
	}
	err = s.stores.Log.Append(ctx, recs)
	done(err)
	return err
}

// storeLater stores schedules and timers. If all are for bulk lanes, it waits for their turn first.
func (s *Service) storeLater(ctx context.Context, p *storePlan) error {
	if slices.ContainsFunc(p.schedules, func(one engine.Schedule) bool { return !one.Category.Bulk() }) {
		return s.stores.Later.Put(ctx, p.schedules, p.timers)
	}
	size := int64(0)
	for i := range p.timers {
		size += int64(len(p.timers[i].Payload))
	}
	done, err := s.cfg.Admission.Store(ctx, notify.Marketing, size)
	if err != nil {
		return err
	}
	err = s.stores.Later.Put(ctx, p.schedules, p.timers)
	done(err)
	return err
}

// How long a read of the spill buffer may take, and how long it pauses after a failure.
const (
	spillReadTimeout = 250 * time.Millisecond
	spillRetryPause  = 500 * time.Millisecond
	// spillTrust is how long the last state of the buffer counts while it cannot be read: records
	// in it must not be overtaken only because the buffer is slow.
	spillTrust = 30 * time.Second
)

// isSpilling reports whether the spill buffer holds anything. n is the number of records that must
// not overtake it.
func (s *Service) isSpilling(ctx context.Context, n int) bool {
	switch {
	case s.stores.Spill == nil || n == 0:
		return false
	case time.Now().UnixNano() < s.spillUnreadUntil.Load():
		return s.lastSeenSpilling()
	}
	holds, ok := s.spillLooks.await(ctx, s.lookAtSpill)
	if !ok {
		return s.lastSeenSpilling()
	}
	return holds
}

// lastSeenSpilling answers while the buffer cannot be read. A buffer last seen filled counts as
// filled for spillTrust; after that the log decides. It would be worse to refuse codes because a
// buffer that is almost always empty cannot be read, or to let each of them wait for a buffer that
// does not answer.
func (s *Service) lastSeenSpilling() bool { return time.Now().UnixNano() < s.spillHeldUntil.Load() }

// lookAtSpill reads whether the buffer holds anything.
func (s *Service) lookAtSpill(ctx context.Context) bool {
	now := time.Now()
	held := s.spillHeldUntil.Load()
	if now.UnixNano() < s.spillUnreadUntil.Load() { // the read before this one failed
		return s.lastSeenSpilling()
	}
	ask, stop := context.WithTimeout(ctx, spillReadTimeout)
	defer stop()
	waiting, _, _, err := s.stores.Spill.Stats(ask)
	if err != nil {
		if ctx.Err() == nil {
			s.spillUnreadUntil.Store(now.Add(spillReadTimeout + spillRetryPause).UnixNano())
			s.cfg.Logger.Warn("the spill buffer cannot be read", slog.Any("error", err))
		}
		return now.UnixNano() < held
	}
	if waiting > 0 {
		s.spillHeldUntil.Store(now.Add(spillTrust).UnixNano())
		return true
	}
	s.spillHeldUntil.CompareAndSwap(held, 0) // unless another request spilled in the meantime
	return false
}

// spillCritical pushes critical records into the spill buffer.
func (s *Service) spillCritical(ctx context.Context, crit []log.Record, at int64) error {
	if len(crit) == 0 {
		return nil
	}
	out := make([]engine.Spilled, len(crit))
	for i, r := range crit {
		out[i] = engine.Spilled{Topic: r.Topic, Key: r.Key, Part: r.Partition, Value: r.Value, At: at}
	}
	// The caller may have given up waiting for the log. Its message is stored all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spillTimeout)
	defer cancel()
	if err := s.stores.Spill.Push(ctx, out, s.cfg.SpillBytes); err != nil {
		return err
	}
	s.spillHeldUntil.Store(time.Now().Add(spillTrust).UnixNano())
	s.cfg.Events.spilled(len(out))
	return nil
}

// recordsOf returns the records of a class.
func (p *storePlan) recordsOf(c storeClass) (out []log.Record) {
	for i, r := range p.recs {
		if p.classes[i] == c {
			out = append(out, r)
		}
	}
	return out
}

// campaignPart is one request that belongs to a campaign.
type campaignPart struct {
	id                 string
	part               uint32
	accepted, rejected int
}

// campaignRoute is the scope of the keys of campaign parts.
const campaignRoute = "campaign"

// campaignKey returns the key of a campaign part. It replaces the Idempotency-Key, so that a part
// goes out once whatever key a client sends with its retry.
func campaignKey(caller, campaign string, part uint32) engine.IdemKey {
	return engine.IdemKey{Caller: caller, Route: campaignRoute, Key: campaign + "/" + strconv.FormatUint(uint64(part), 10)}
}

// maxCampaignParts is how many parts a campaign may have. Each is a row that is read with every
// further part and with every view of the campaign. A part may have as many receivers as a fan-out.
const maxCampaignParts = 100_000

// checkCampaign checks the form of a campaign's id, and that a part comes with a campaign.
func checkCampaign(id string, hasPart bool) error {
	if id == "" {
		if hasPart {
			return invalid("required", "campaign", "a part needs the field campaign")
		}
		return nil
	}
	ulid, ok := strings.CutPrefix(id, "cmp_")
	if base, err := notify.ParseBase(ulid); !ok || err != nil || base.String() != ulid {
		return invalid("bad_campaign", "campaign", "a campaign is cmp_ and a ULID made by the client")
	}
	return nil
}

// checkCampaignOpen refuses parts of a cancelled campaign and of another caller's campaign, before
// anything is stored.
func (s *Service) checkCampaignOpen(ctx context.Context, m *request.Meta, id string) error {
	c, ok, err := s.stores.Campaigns.Get(ctx, id)
	if err != nil {
		return err
	}
	switch {
	case ok && c.Caller != m.Caller:
		return notify.NotFound("campaign")
	case c.Parts >= maxCampaignParts:
		return &notify.Error{Kind: notify.KindConflict, Code: "too_many_parts", Field: "campaign", Msg: "a campaign has at most 100,000 parts: put more receivers into a part"}
	}
	_, cancelled, err := s.stores.Cancels.Get(ctx, id)
	if err != nil {
		return err
	}
	if cancelled {
		return &notify.Error{Kind: notify.KindConflict, Code: "campaign_cancelled", Field: "campaign", Msg: "the campaign was cancelled and takes no more parts"}
	}
	return nil
}

// record stores that a part is durable.
func (p *campaignPart) record(ctx context.Context, s *Service, m *request.Meta, l request.Basis) error {
	return s.stores.Campaigns.AddPart(ctx, p.id, m.Caller, p.part, l.Base, int64(p.accepted), int64(p.rejected), l.Accepted)
}
