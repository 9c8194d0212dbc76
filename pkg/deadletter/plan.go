package deadletter

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Kinds of jobs.
const (
	KindReplay    = "replay"    // dead letters are sent again
	KindDiscard   = "discard"   // dead letters are put aside for good
	KindExport    = "export"    // dead letters are copied into the job's report
	KindReconcile = "reconcile" // what no longer fits together is repaired
)

// Policies of a replay.
const (
	ExpiredSkip = "skip" // what is past its deadline is left as it is
	ExpiredSend = "send" // it is sent without the deadline
	ExpiredFail = "fail" // it is sent with it, and becomes EXPIRED

	CollapseNone   = "none"
	CollapseLatest = "latest-per-recipient" // of one user, channel and template only the latest failure is sent

	OrderOffset = "offset" // in the order they failed
	OrderDue    = "due"    // in the order they were accepted

	CircuitStop = "stop" // an open circuit stops the job
	CircuitWait = "wait" // the job waits until it is closed
)

// Limits of a job.
const (
	MaxRate    = 20_000
	MaxEntries = 5_000_000 // of one job
	maxCanary  = 1000
)

// checkSpec fills in defaults and refuses what breaks a rule.
func checkSpec(s *api.JobSpec) error {
	if !slices.Contains([]string{KindReplay, KindDiscard, KindExport, KindReconcile}, s.Kind) {
		return notify.Invalid("bad_kind", "kind", "replay, discard, export or reconcile")
	}
	if s.Kind == KindReconcile {
		return nil
	}
	if s.Filter.Empty() && !s.Filter.All {
		return notify.Invalid("no_filter", "filter", "a filter is missing; all says that every dead letter is meant")
	}
	if s.Rate == 0 {
		s.Rate = 50
		if s.Kind != KindReplay {
			s.Rate = MaxRate
		}
	}
	if s.Rate < 0.01 || s.Rate > MaxRate {
		return notify.Invalid("out_of_range", "rate", fmt.Sprintf("from 0.01 to %d a second", MaxRate))
	}
	if s.Kind != KindReplay {
		return nil
	}
	def := func(v *string, is string, of ...string) bool {
		if *v == "" {
			*v = is
		}
		return slices.Contains(append(of, is), *v)
	}
	if s.Canary == 0 {
		s.Canary = 10
	}
	if s.AbortIf == 0 {
		s.AbortIf = 0.2
	}
	if s.MaxReplays == 0 {
		s.MaxReplays = 3
	}
	switch {
	case s.RampMs < 0 || s.RampMs > int64(24*time.Hour/time.Millisecond):
		return notify.Invalid("out_of_range", "ramp_ms", "from 0 to a day")
	case s.Canary > maxCanary:
		return notify.Invalid("out_of_range", "canary", "at most 1,000; negative: none")
	case s.AbortIf > 1:
		return notify.Invalid("out_of_range", "abort_if", "at most 1; negative: never")
	case s.MaxReplays < 1 || s.MaxReplays > 1000:
		return notify.Invalid("out_of_range", "max_replays", "from 1 to 1,000")
	case !def(&s.Expired, ExpiredSkip, ExpiredSend, ExpiredFail):
		return notify.Invalid("bad_expired", "expired", "skip, send or fail")
	case !def(&s.Collapse, CollapseNone, CollapseLatest):
		return notify.Invalid("bad_collapse", "collapse", "none or latest-per-recipient")
	case !def(&s.Order, OrderOffset, OrderDue):
		return notify.Invalid("bad_order", "order", "offset or due")
	case !def(&s.OpenCircuit, CircuitStop, CircuitWait):
		return notify.Invalid("bad_open_circuit", "open_circuit", "stop or wait")
	}
	return nil
}

// Reasons why an entry of a plan is not acted on.
const (
	SkipExpired   = "expired"
	SkipExhausted = "exhausted" // replayed MaxReplays times before
	SkipCollapsed = "collapsed"
	SkipReplayed  = "already_replayed"
	SkipDiscarded = "already_discarded"
	SkipGone      = "letter_gone"  // retention took it
	SkipContent   = "content_gone" // the notification itself is no longer kept
	SkipReached   = "reached"      // a later report says that it arrived
	SkipUnknown   = "unknown"      // it may have arrived, and force_resend is not set
	SkipTrigger   = "no_triggers"  // this server cannot enqueue triggers
)

const (
	maxKinds = 200 // of one count; the rest is counted as "other"
	endsSoon = 24 * time.Hour
)

func count(m map[string]int, k string) {
	if _, ok := m[k]; !ok && len(m) >= maxKinds {
		k = "other"
	}
	m[k]++
}

// entry is one place of a frozen set.
type entry struct {
	ord       uint64
	key       int64  // to order by
	who       uint64 // to collapse by
	collapsed bool
}

// set is a frozen set and what was counted on the way. It keeps what a job
// needs: 8 to 32 bytes an entry, and only while a job is made.
type set struct {
	plan    api.Plan
	entries []entry
	report  json.RawMessage // of a reconcile, in their place
}

// planner reads the index once.
type planner struct {
	letters engine.DeadLetters
	now     func() time.Time
	keep    bool // the entries, for a job
	most    int  // entries; 0: MaxEntries

	unreachable func(*engine.DeadLetter) string // nil: not asked
}

func (p *planner) make(ctx context.Context, spec api.JobSpec) (*set, error) {
	if err := checkSpec(&spec); err != nil {
		return nil, err
	}
	now := p.now().UnixMilli()
	if spec.UpTo == 0 {
		var err error
		if spec.UpTo, err = p.letters.Last(ctx); err != nil {
			return nil, err
		}
	}
	s := &set{plan: api.Plan{Spec: spec, Made: now, Skip: map[string]int{}, Unreach: map[string]int{}, Counts: map[string]map[string]int{}}}
	for _, k := range []string{"class", "caller", "channel", "provider", "template", "code"} {
		s.plan.Counts[k] = map[string]int{}
	}
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(spec) // of strings and numbers: cannot fail
	most := p.most
	if most == 0 {
		most = MaxEntries
	}
	collapse := spec.Collapse == CollapseLatest
	latest := map[uint64]int{} // by user, channel and template: place in entries
	codes := map[int]string{}  // by place in entries: the code under which Unreach counted it; a later letter may collapse it
	mine := func(d *engine.DeadLetter) bool { return selectable(&spec, d) }
	err := walk(ctx, p.letters, &spec.Filter, spec.UpTo, mine, func(d *engine.DeadLetter) error {
		if s.plan.Entries++; s.plan.Entries > most {
			return notify.Invalid("too_many", "filter", fmt.Sprintf("it selects more than %d: narrow it", most))
		}
		digest(h, d)
		s.count(d, now)
		reason := ""
		if spec.Kind == KindReplay {
			reason = before(&spec, d, now)
		}
		code := ""
		if spec.Kind == KindReplay && reason == "" && p.unreachable != nil {
			if code = p.unreachable(d); code != "" {
				s.plan.Unreach[code]++
			}
		}
		e := entry{ord: d.Ord}
		if spec.Order == OrderDue {
			e.key = d.ID.Base.Time().UnixMilli()
		}
		if collapse && reason == "" {
			e.who = notify.HashUser([]byte(d.User + "\x00" + d.Channel + "\x00" + d.Template + "\x00" + d.Caller))
			if i, ok := latest[e.who]; ok {
				s.entries[i].collapsed = true
				if c := codes[i]; c != "" {
					s.plan.Unreach[c]--
				}
				s.plan.Skip[SkipCollapsed]++
			}
			latest[e.who] = len(s.entries)
			if code != "" {
				codes[len(s.entries)] = code
			}
		}
		if reason != "" {
			s.plan.Skip[reason]++
		}
		if p.keep || collapse {
			s.entries = append(s.entries, e)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.plan.Send = s.plan.Entries
	for _, n := range s.plan.Skip {
		s.plan.Send -= n
	}
	s.plan.EtaMs = int64(float64(s.plan.Send) / spec.Rate * 1000)
	s.plan.Digest = hex.EncodeToString(h.Sum(nil)[:16])
	if spec.Order == OrderDue {
		slices.SortStableFunc(s.entries, func(a, b entry) int { return int(min(max(a.key-b.key, -1), 1)) })
	}
	return s, nil
}

// selectable says which states a kind of job is about.
func selectable(spec *api.JobSpec, d *engine.DeadLetter) bool {
	switch {
	case spec.Kind == KindExport, d.State == engine.LetterDead:
		return true
	case spec.Kind == KindReplay && spec.ForceResend:
		return d.State == engine.LetterReplayed
	}
	return false
}

// before is the reason why a letter is not replayed, as far as the letter tells.
func before(spec *api.JobSpec, d *engine.DeadLetter, now int64) string {
	switch {
	case int(d.Epoch) >= spec.MaxReplays && d.Channel != ChannelTrigger:
		return SkipExhausted
	case d.Expires != 0 && d.Expires <= now && spec.Expired == ExpiredSkip:
		return SkipExpired
	case d.Ended() == notify.Unknown && !spec.ForceResend:
		return SkipUnknown
	}
	return ""
}

func (s *set) count(d *engine.DeadLetter, now int64) {
	c := s.plan.Counts
	count(c["class"], d.Class)
	count(c["caller"], d.Caller)
	count(c["channel"], d.Channel)
	count(c["code"], d.Code)
	if d.Provider != "" {
		count(c["provider"], d.Provider)
	}
	if d.Template != "" {
		count(c["template"], d.Template)
	}
	if d.Until-now < endsSoon.Milliseconds() {
		s.plan.EndsSoon++
	}
}

func digest(h hash.Hash, d *engine.DeadLetter) {
	b := make([]byte, 0, 64)
	b = binary.BigEndian.AppendUint64(b, d.Ord)
	b = append(b, d.ID.Base[:]...)
	b = binary.BigEndian.AppendUint32(b, d.ID.Index)
	b = binary.BigEndian.AppendUint16(b, d.Epoch)
	b = append(append(b, d.State...), '\n')
	h.Write(b)
}

// A job keeps its set in pages, as entries of its own behind those of its report.
const (
	pageSize = 8192
	setAt    = uint64(1) << 63
)

func (s *set) pages() (out []engine.JobEntry) {
	if s.report != nil {
		return []engine.JobEntry{{At: setAt + 1, Doc: s.report}}
	}
	for page := range slices.Chunk(s.entries, pageSize) {
		b := make([]byte, 0, 3*len(page))
		last := int64(0)
		for _, e := range page {
			v := (int64(e.ord) - last) << 1
			if e.collapsed {
				v |= 1
			}
			b = binary.AppendVarint(b, v)
			last = int64(e.ord)
		}
		out = append(out, engine.JobEntry{At: setAt + uint64(len(out)) + 1, Doc: b})
	}
	return out
}

func readPage(b []byte) ([]entry, error) {
	var out []entry
	last := int64(0)
	for len(b) > 0 {
		v, n := binary.Varint(b)
		if n <= 0 {
			return nil, fmt.Errorf("set of a job: %w", notify.ErrCorrupt)
		}
		last += v >> 1
		out = append(out, entry{ord: uint64(last), collapsed: v&1 == 1})
		b = b[n:]
	}
	return out, nil
}

// entries returns up to n entries of a job's set from a position on.
func entries(ctx context.Context, m *Manager, id string, at, n int) ([]entry, error) {
	var out []entry
	for page := at / pageSize; len(out) < n; page++ {
		es, err := m.cfg.Jobs.Entries(ctx, id, setAt+uint64(page), 1)
		if err != nil {
			return nil, err
		}
		if len(es) == 0 || es[0].At != setAt+uint64(page)+1 {
			break
		}
		all, err := readPage(es[0].Doc)
		if err != nil {
			return nil, err
		}
		from := max(at-page*pageSize, 0)
		if from >= len(all) {
			break
		}
		out = append(out, all[from:min(len(all), from+n-len(out))]...)
	}
	return out, nil
}

// letters returns the letters of entries; nil for one that is gone.
func letters(ctx context.Context, m *Manager, es []entry) ([]*engine.DeadLetter, error) {
	out := make([]*engine.DeadLetter, len(es))
	place := make(map[uint64]int, len(es))
	lo, hi := ^uint64(0), uint64(0)
	for i, e := range es {
		place[e.ord] = i
		lo, hi = min(lo, e.ord), max(hi, e.ord)
	}
	take := func(d *engine.DeadLetter) error {
		if i, ok := place[d.Ord]; ok {
			c := *d
			out[i] = &c
		}
		return nil
	}
	if len(es) > 0 && hi-lo < uint64(8*len(es)) {
		return out, m.cfg.Letters.Walk(ctx, lo-1, hi, take)
	}
	for _, e := range es { // far apart
		if err := m.cfg.Letters.Walk(ctx, e.ord-1, e.ord, take); err != nil {
			return nil, err
		}
	}
	return out, nil
}
