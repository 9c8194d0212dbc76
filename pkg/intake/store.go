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
	classCritical storeClass = iota // added to the spill buffer
	// These records share a lane with critical records, so they are refused while critical records
	// are spilled.
	classPrompt
	classBulk  // has its own lane
	classLater // timers, which are not records
	classCount = int(classLater) + 1
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

// failures contains for each class the error with which its records could not be stored, or
// nil.
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
	s         *Service
	m         *request.Meta
	basis     request.Basis
	fire      int64 // latest fire time of its notifications, ms since 1970; 0: now
	parts     uint16
	block     uint32
	recs      []log.Record
	classes   []storeClass // classes of recs
	timers    []engine.Timer
	schedules []engine.Schedule // schedules of timers
	campaign  *campaignPart
	// fanoutTopic is the topic of a fan-out. The records of the fan-out are split over as many
	// partitions as the field parts contains. Empty: the request is not a fan-out.
	fanoutTopic string

	// answer makes the answer of the request. It is called once, after Store has stored what it
	// could. failed contains for each class the error with which its records could not be
	// stored, or nil.
	answer func(failed *failures) (a request.Answer, final bool, err error)
	// done returns buffers to their pools. It is called only when no store refers to the buffers
	// any more. The field may be nil.
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

// Store implements request.Plan. It stores the records and timers of p and makes the answer.
func (p *storePlan) Store(ctx context.Context) (a request.Answer, final, touched bool, err error) {
	// If held is true, the stores may still refer to the records' buffers.
	s, held := p.s, false
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
		held = true // timers that are due soon may be in a wheel now, and the wheel keeps their payloads
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

// errPartitionsRaised means that the number of partitions of a topic was increased after a fan-out
// was split for the old number. Nothing is stored, and the fan-out can be split again at once.
var errPartitionsRaised = &notify.Error{Kind: notify.KindUnavailable, Code: "partitions_raised", Msg: "the number of partitions of the log was increased while this request was read; send the request again", RetryAfter: time.Second}

// errDraining is the error for prompt records while critical records are spilled.
var errDraining = &notify.Error{
	Kind: notify.KindUnavailable, Code: "log_draining", RetryAfter: retryUnavailable,
	Msg: "the log was unavailable, and notifyd must first write the messages that waited for the log; try again later",
}

// checkPartitionsRaised returns errPartitionsRaised if some users of the fan-out now belong to
// another partition. Their next messages would be appended to the new partition and could overtake
// the fan-out. A resumed request is not checked: it keeps the number of partitions that its
// reservation contains, because some of its records may be stored.
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
	retryUnavailable = 2 * time.Second // how long a caller must wait before it repeats
	spillTimeout     = 2 * time.Second // time limit for spilling, which continues even if the caller disconnects
)

// checkGate returns the error of a gate. A nil gate is always open.
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

// appendRecords appends the records to the log. While the log is down, it puts critical records
// into the spill buffer. While the buffer is not empty, it adds critical records to the buffer and
// refuses prompt records, so that no message overtakes a spilled message of its lane. It checks the
// buffer for every request that has critical or prompt records. The drainer empties the buffer only
// after the log has acknowledged the records. So a request that finds the buffer empty may append.
//
// The result held is true if the log returned an error and may still refer to the records.
func (s *Service) appendRecords(ctx context.Context, p *storePlan, at int64, failed *failures) (held bool) {
	var has [classCount]int
	for _, c := range p.classes {
		has[c]++
	}
	if s.isSpilling(ctx, has[classCritical]+has[classPrompt]) {
		failed[classCritical] = s.spillCritical(ctx, p.recordsOf(classCritical), at)
		if has[classPrompt] > 0 {
			failed[classPrompt] = errDraining
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

// gateOf returns the gate for the records of p. When the log is nearly full, the gate for bulk
// records closes first. So the last free space is left for other records.
func (s *Service) gateOf(p *storePlan) Gate {
	if s.stores.BulkGate != nil && !slices.ContainsFunc(p.classes, func(c storeClass) bool { return c != classBulk }) {
		return s.stores.BulkGate
	}
	return s.stores.Gate
}

// appendBulk waits for a turn in the Admission and then appends bulk records.
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

// storeLater stores schedules and timers. If all of them are for bulk lanes, it first waits for
// a turn in the Admission.
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

// spillReadTimeout is the time limit of a read of the spill buffer. After a failed read, no
// read is made for spillRetryPause.
const (
	spillReadTimeout = 250 * time.Millisecond
	spillRetryPause  = 500 * time.Millisecond
	// spillTrust is how long the last known state of the buffer counts while the buffer cannot
	// be read. Without it, a new message could overtake spilled messages when the buffer is
	// only slow.
	spillTrust = 30 * time.Second
)

// isSpilling reports whether the spill buffer contains records. The parameter n is the number of
// new records that must not overtake the records in the buffer. If n is 0, isSpilling returns
// false.
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

// lastSeenSpilling reports whether the buffer counts as filled while it cannot be read. If the
// buffer contained records at the last read, it counts as filled for the time spillTrust. After
// that time, only the log decides whether a record is accepted. The buffer is almost always
// empty. So it would do more harm to refuse otp messages, or to let each otp message wait, only
// because the buffer cannot be read.
func (s *Service) lastSeenSpilling() bool { return time.Now().UnixNano() < s.spillHeldUntil.Load() }

// lookAtSpill reads whether the buffer contains records.
func (s *Service) lookAtSpill(ctx context.Context) bool {
	now := time.Now()
	held := s.spillHeldUntil.Load()
	if now.UnixNano() < s.spillUnreadUntil.Load() { // the previous read failed
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
	s.spillHeldUntil.CompareAndSwap(held, 0) // unless another request has spilled in the meantime
	return false
}

// spillCritical adds critical records to the spill buffer.
func (s *Service) spillCritical(ctx context.Context, crit []log.Record, at int64) error {
	if len(crit) == 0 {
		return nil
	}
	out := make([]engine.Spilled, len(crit))
	for i, r := range crit {
		out[i] = engine.Spilled{Topic: r.Topic, Key: r.Key, Part: r.Partition, Value: r.Value, At: at}
	}
	// The caller may have disconnected while it waited for the log. Its message is stored in spite
	// of that.
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

// campaignRoute is the route in the keys of campaign parts.
const campaignRoute = "campaign"

// campaignKey returns the key of a campaign part. It replaces the Idempotency-Key. So a part is
// sent only once, even if the client repeats it with another Idempotency-Key.
func campaignKey(caller, campaign string, part uint32) engine.IdemKey {
	return engine.IdemKey{Caller: caller, Route: campaignRoute, Key: campaign + "/" + strconv.FormatUint(uint64(part), 10)}
}

// maxCampaignParts is how many parts a campaign may have. Each part is a row. All these rows are
// read for each further part and for each view of the campaign. A part may have as many receivers
// as a fan-out.
const maxCampaignParts = 100_000

// checkCampaign checks the form of a campaign's id. It returns an error if a part is given without
// a campaign.
func checkCampaign(id string, hasPart bool) error {
	if id == "" {
		if hasPart {
			return invalid("required", "campaign", "must be set if part is set")
		}
		return nil
	}
	ulid, ok := strings.CutPrefix(id, "cmp_")
	if base, err := notify.ParseBase(ulid); !ok || err != nil || base.String() != ulid {
		return invalid("bad_campaign", "campaign", "must be \"cmp_\" followed by a ULID that the client makes")
	}
	return nil
}

// checkCampaignOpen returns an error, before anything is stored, if the campaign was cancelled,
// belongs to another caller, or has too many parts.
func (s *Service) checkCampaignOpen(ctx context.Context, m *request.Meta, id string) error {
	c, ok, err := s.stores.Campaigns.Get(ctx, id)
	if err != nil {
		return err
	}
	switch {
	case ok && c.Caller != m.Caller:
		return notify.NotFound("campaign")
	case c.Parts >= maxCampaignParts:
		return &notify.Error{Kind: notify.KindConflict, Code: "too_many_parts", Field: "campaign", Msg: "the campaign already has 100,000 parts, which is the maximum; put more receivers into each part"}
	}
	_, cancelled, err := s.stores.Cancels.Get(ctx, id)
	if err != nil {
		return err
	}
	if cancelled {
		return &notify.Error{Kind: notify.KindConflict, Code: "campaign_cancelled", Field: "campaign", Msg: "the campaign was cancelled and accepts no more parts"}
	}
	return nil
}

// record adds the part to its campaign after the part is durable.
func (p *campaignPart) record(ctx context.Context, s *Service, m *request.Meta, l request.Basis) error {
	return s.stores.Campaigns.AddPart(ctx, p.id, m.Caller, p.part, l.Base, int64(p.accepted), int64(p.rejected), l.Accepted)
}
