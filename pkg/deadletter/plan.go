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
	KindDiscard   = "discard"   // dead letters are set to discarded for good
	KindExport    = "export"    // dead letters are copied into the job's report
	KindReconcile = "reconcile" // drift is repaired
)

// Policies of a replay.
const (
	ExpiredSkip = "skip" // a letter whose deadline has passed is skipped
	ExpiredSend = "send" // it is sent without the deadline
	ExpiredFail = "fail" // it is sent with its deadline, and becomes EXPIRED

	CollapseNone   = "none"
	CollapseLatest = "latest-per-recipient" // of the letters with the same user, channel, template and caller, only the latest is sent

	OrderOffset = "offset" // in the order in which they failed
	OrderDue    = "due"    // in the order in which they were accepted

	CircuitStop = "stop" // an open circuit stops the job
	CircuitWait = "wait" // the job waits until the circuit is closed
)

// Limits of a job.
const (
	MaxRate    = 20_000    // letters a second
	MaxEntries = 5_000_000 // entries of one job
	maxCanary  = 1000
)

// checkSpec replaces the unset fields of s by defaults. It returns notify.KindInvalid if a field is
// wrong.
func checkSpec(s *api.JobSpec) error {
	if !slices.Contains([]string{KindReplay, KindDiscard, KindExport, KindReconcile}, s.Kind) {
		return notify.Invalid("bad_kind", "kind", fmt.Sprintf("must be replay, discard, export or reconcile, not %q", s.Kind))
	}
	if s.Kind == KindReconcile {
		return nil
	}
	if s.Filter.Empty() && !s.Filter.All {
		return notify.Invalid("no_filter", "filter", `the filter is empty; set "all" to true to select every dead letter`)
	}
	if s.Rate == 0 {
		s.Rate = 50
		if s.Kind != KindReplay {
			s.Rate = MaxRate
		}
	}
	if s.Rate < 0.01 || s.Rate > MaxRate {
		return notify.Invalid("out_of_range", "rate", fmt.Sprintf("must be from 0.01 to %d dead letters a second, not %v", MaxRate, s.Rate))
	}
	if s.Kind != KindReplay {
		return nil
	}
	oneOf := func(v *string, byDefault string, others ...string) bool {
		if *v == "" {
			*v = byDefault
		}
		return slices.Contains(append(others, byDefault), *v)
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
		return notify.Invalid("out_of_range", "ramp_ms", fmt.Sprintf("must be from 0 to 86,400,000 ms (a day), not %d ms", s.RampMs))
	case s.Canary > maxCanary:
		return notify.Invalid("out_of_range", "canary", fmt.Sprintf("must be at most 1,000 dead letters, not %d; a negative number means that there is no canary", s.Canary))
	case s.AbortIf > 1:
		return notify.Invalid("out_of_range", "abort_if", fmt.Sprintf("must be a share of the dead letters, at most 1, not %v; a negative number means that failures never stop the job", s.AbortIf))
	case s.MaxReplays < 1 || s.MaxReplays > 1000:
		return notify.Invalid("out_of_range", "max_replays", fmt.Sprintf("must be from 1 to 1,000, not %d", s.MaxReplays))
	case !oneOf(&s.Expired, ExpiredSkip, ExpiredSend, ExpiredFail):
		return notify.Invalid("bad_expired", "expired", fmt.Sprintf(`must be "skip", "send" or "fail", not %q`, s.Expired))
	case !oneOf(&s.Collapse, CollapseNone, CollapseLatest):
		return notify.Invalid("bad_collapse", "collapse", fmt.Sprintf(`must be "none" or "latest-per-recipient", not %q`, s.Collapse))
	case !oneOf(&s.Order, OrderOffset, OrderDue):
		return notify.Invalid("bad_order", "order", fmt.Sprintf(`must be "offset" or "due", not %q`, s.Order))
	case !oneOf(&s.OpenCircuit, CircuitStop, CircuitWait):
		return notify.Invalid("bad_open_circuit", "open_circuit", fmt.Sprintf(`must be "stop" or "wait", not %q`, s.OpenCircuit))
	}
	return nil
}

// Reasons why a job skips an entry.
const (
	SkipExpired   = "expired"
	SkipExhausted = "exhausted" // it was replayed MaxReplays times before
	SkipCollapsed = "collapsed"
	SkipReplayed  = "already_replayed"
	SkipDiscarded = "already_discarded"
	SkipGone      = "letter_gone"  // the letter was removed after its retention
	SkipContent   = "content_gone" // the notification itself is no longer stored
	SkipReached   = "reached"      // its rows now have an outcome other than a failure
	SkipUnknown   = "unknown"      // it may have arrived, and force_resend is not set
	SkipTrigger   = "no_triggers"  // this server cannot enqueue triggers
)

const (
	maxKinds = 200 // largest number of keys in one map of counts; all further keys are counted as "other"
	endsSoon = 24 * time.Hour
)

func countKind(m map[string]int, k string) {
	if _, ok := m[k]; !ok && len(m) >= maxKinds {
		k = "other"
	}
	m[k]++
}

// setEntry is one letter of a frozen set.
type setEntry struct {
	ord       uint64 // position of the letter in the index
	key       int64  // sort key with OrderDue
	who       uint64 // hash of user, channel, template and caller, with CollapseLatest
	collapsed bool   // a later entry has the same hash (who), so this entry is skipped
}

// frozenSet contains the letters of a job, and the plan with its counts. It is in memory only
// while the job is made; each entry takes up to 32 bytes.
type frozenSet struct {
	plan    api.Plan
	entries []setEntry
	report  json.RawMessage // report of a reconcile; such a set has no entries
}

// planner builds a frozenSet by reading the index once.
type planner struct {
	letters engine.DeadLetters
	now     func() time.Time
	keep    bool // keep the entries, for a job
	most    int  // how many entries a set may have; 0: MaxEntries

	unreachable func(*engine.DeadLetter) string // nil: not called
}

// buildSet returns the letters that spec selects, up to spec.UpTo. If spec.UpTo is 0, it selects up
// to the current end of the index. It returns notify.KindInvalid for a wrong spec or too many
// letters.
func (p *planner) buildSet(ctx context.Context, spec api.JobSpec) (*frozenSet, error) {
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
	s := &frozenSet{plan: api.Plan{Spec: spec, Made: now, Skip: map[string]int{}, Unreachable: map[string]int{}, Counts: map[string]map[string]int{}}}
	for _, k := range []string{"class", "caller", "channel", "provider", "template", "code"} {
		s.plan.Counts[k] = map[string]int{}
	}
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(spec) // strings and numbers always encode
	most := p.most
	if most == 0 {
		most = MaxEntries
	}
	collapse := spec.Collapse == CollapseLatest
	latest := map[uint64]int{} // index in entries of the latest letter, by setEntry.who
	codes := map[int]string{}  // by index in entries: the code under which plan.Unreachable counts a letter that may still be collapsed
	mine := func(d *engine.DeadLetter) bool { return selectable(&spec, d) }
	err := walkSelected(ctx, p.letters, &spec.Filter, spec.UpTo, mine, func(d *engine.DeadLetter) error {
		if s.plan.Entries++; s.plan.Entries > most {
			return notify.Invalid("too_many", "filter", fmt.Sprintf("selects more than %d dead letters, which is the maximum of one job; select fewer", most))
		}
		hashLetter(h, d)
		s.count(d, now)
		reason := ""
		if spec.Kind == KindReplay {
			reason = skipReason(&spec, d, now)
		}
		code := ""
		if spec.Kind == KindReplay && reason == "" && p.unreachable != nil {
			if code = p.unreachable(d); code != "" {
				s.plan.Unreachable[code]++
			}
		}
		e := setEntry{ord: d.Ord}
		if spec.Order == OrderDue {
			e.key = d.ID.Base.Time().UnixMilli()
		}
		if collapse && reason == "" {
			e.who = notify.HashUser([]byte(d.User + "\x00" + d.Channel + "\x00" + d.Template + "\x00" + d.Caller))
			if i, ok := latest[e.who]; ok {
				s.entries[i].collapsed = true
				if c := codes[i]; c != "" {
					s.plan.Unreachable[c]--
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
		slices.SortStableFunc(s.entries, func(a, b setEntry) int { return int(min(max(a.key-b.key, -1), 1)) })
	}
	return s, nil
}

// selectable reports whether a job of this kind may act on d in its current state.
func selectable(spec *api.JobSpec, d *engine.DeadLetter) bool {
	switch {
	case spec.Kind == KindExport, d.State == engine.LetterDead:
		return true
	case spec.Kind == KindReplay && spec.ForceResend:
		return d.State == engine.LetterReplayed
	}
	return false
}

// skipReason returns why a letter is not replayed, or "". It uses only the letter's own fields.
func skipReason(spec *api.JobSpec, d *engine.DeadLetter, now int64) string {
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

// count adds a letter to the counts of the plan.
func (s *frozenSet) count(d *engine.DeadLetter, now int64) {
	c := s.plan.Counts
	countKind(c["class"], d.Class)
	countKind(c["caller"], d.Caller)
	countKind(c["channel"], d.Channel)
	countKind(c["code"], d.Code)
	if d.Provider != "" {
		countKind(c["provider"], d.Provider)
	}
	if d.Template != "" {
		countKind(c["template"], d.Template)
	}
	if d.Until-now < endsSoon.Milliseconds() {
		s.plan.EndsSoon++
	}
}

// hashLetter adds a letter's identity and state to the digest of a plan.
func hashLetter(h hash.Hash, d *engine.DeadLetter) {
	b := make([]byte, 0, 64)
	b = binary.BigEndian.AppendUint64(b, d.Ord)
	b = append(b, d.ID.Base[:]...)
	b = binary.BigEndian.AppendUint32(b, d.ID.Index)
	b = binary.BigEndian.AppendUint16(b, d.Epoch)
	b = append(append(b, d.State...), '\n')
	h.Write(b)
}

// A job stores its set in pages of pageSize entries. A page is a job entry with a position above
// setPagesFrom. The lines of the job's report have lower positions.
const (
	pageSize     = 8192
	setPagesFrom = uint64(1) << 63
)

// pages encodes the set. Each entry becomes one varint. Its lowest bit is 1 if the entry is
// collapsed. The other bits are the difference between the field ord of the entry and that of the
// entry before it.
func (s *frozenSet) pages() (out []engine.JobEntry) {
	if s.report != nil {
		return []engine.JobEntry{{At: setPagesFrom + 1, Doc: s.report}}
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
		out = append(out, engine.JobEntry{At: setPagesFrom + uint64(len(out)) + 1, Doc: b})
	}
	return out
}

func readPage(b []byte) ([]setEntry, error) {
	var out []setEntry
	last := int64(0)
	for len(b) > 0 {
		v, n := binary.Varint(b)
		if n <= 0 {
			return nil, fmt.Errorf("the stored set of the job: %w", notify.ErrCorrupt)
		}
		last += v >> 1
		out = append(out, setEntry{ord: uint64(last), collapsed: v&1 == 1})
		b = b[n:]
	}
	return out, nil
}

// readEntries returns up to n entries of a job's set, beginning with the entry at the given
// position.
func readEntries(ctx context.Context, m *Manager, id string, position, n int) ([]setEntry, error) {
	var out []setEntry
	for page := position / pageSize; len(out) < n; page++ {
		es, err := m.cfg.Jobs.Entries(ctx, id, setPagesFrom+uint64(page), 1)
		if err != nil {
			return nil, err
		}
		if len(es) == 0 || es[0].At != setPagesFrom+uint64(page)+1 {
			break
		}
		all, err := readPage(es[0].Doc)
		if err != nil {
			return nil, err
		}
		from := max(position-page*pageSize, 0)
		if from >= len(all) {
			break
		}
		out = append(out, all[from:min(len(all), from+n-len(out))]...)
	}
	return out, nil
}

// readLetters returns the letters of entries. The result has nil in place of a letter that is gone.
func readLetters(ctx context.Context, m *Manager, es []setEntry) ([]*engine.DeadLetter, error) {
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
	for _, e := range es { // the entries are far apart: read each letter separately
		if err := m.cfg.Letters.Walk(ctx, e.ord-1, e.ord, take); err != nil {
			return nil, err
		}
	}
	return out, nil
}
