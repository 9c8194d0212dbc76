package simulator

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Totals counts what one provider, or all of them, received.
type Totals struct {
	Requests   uint64 `json:"requests"`   // HTTP requests that were read to their end
	Receivers  uint64 `json:"receivers"`  // receivers in them; more than one only with SendGrid
	Accepted   uint64 `json:"accepted"`   // receivers answered 2xx
	Ambiguous  uint64 `json:"ambiguous"`  // taken, but the caller was not told
	Rejected   uint64 `json:"rejected"`   // refused, or cut off before being taken
	IDs        uint64 `json:"ids"`        // distinct notification ids taken
	Deliveries uint64 `json:"deliveries"` // distinct (id, address) pairs taken
	Duplicates uint64 `json:"duplicates"` // takes of a pair after its first
	NoID       uint64 `json:"no_id"`      // receivers without a notification id
	Untracked  uint64 `json:"untracked"`  // ids of a foreign form beyond what is kept

	// Status counts receivers by the answer; "none" when there was no answer.
	Status map[string]uint64 `json:"status"`
}

// Summary is the state of the whole ledger.
type Summary struct {
	Totals
	Providers map[string]Totals `json:"providers"`
	Order     OrderReport       `json:"order"`
	FileError string            `json:"file_error,omitempty"` // why the ledger file stopped
}

// Summary counts everything so far. Counts move while it reads them; they agree
// with each other once no request is under way.
func (l *Ledger) Summary() Summary {
	out := Summary{Providers: map[string]Totals{}, Totals: Totals{Status: map[string]uint64{}}}
	for i := range l.count {
		c := &l.count[i]
		t := Totals{
			Requests: c.requests.Load(), Receivers: c.receivers.Load(),
			Accepted: c.accepted.Load(), Ambiguous: c.ambiguous.Load(), Rejected: c.rejected.Load(),
			IDs: c.ids.Load(), Deliveries: c.deliveries.Load(), Duplicates: c.duplicates.Load(),
			NoID: c.noID.Load(), Untracked: c.untracked.Load(), Status: map[string]uint64{},
		}
		for j := range c.status {
			if n := c.status[j].Load(); n > 0 {
				t.Status[statusName(statuses[j])] = n
				out.Status[statusName(statuses[j])] += n
			}
		}
		out.Providers[Provider(i+1).String()] = t
		out.add(t)
	}
	out.Order = l.order.report()
	if l.file != nil {
		if err := l.file.failure(); err != nil {
			out.FileError = err.Error()
		}
	}
	return out
}

func (t *Totals) add(o Totals) {
	t.Requests += o.Requests
	t.Receivers += o.Receivers
	t.Accepted += o.Accepted
	t.Ambiguous += o.Ambiguous
	t.Rejected += o.Rejected
	t.IDs += o.IDs
	t.Deliveries += o.Deliveries
	t.Duplicates += o.Duplicates
	t.NoID += o.NoID
	t.Untracked += o.Untracked
}

func statusName(code int) string {
	switch code {
	case 0:
		return "none"
	case -1:
		return "other"
	}
	return strconv.Itoa(code)
}

// Delivery is what the ledger knows of one id at one address.
type Delivery struct {
	ID         string    `json:"id"`
	Provider   Provider  `json:"provider"`
	Address    string    `json:"address"`    // the low 32 bits of the address's hash
	At         time.Time `json:"at"`         // first delivery, else first attempt; to 100 us
	Attempts   int       `json:"attempts"`   // 15 means 15 or more
	Deliveries int       `json:"deliveries"` // takes; 15 means 15 or more
	Status     int       `json:"status"`     // last answer; 0: none, -1: an unusual one
}

// Duplicate is one take of a pair that had been taken before.
type Duplicate struct {
	ID          string    `json:"id"`
	Provider    Provider  `json:"provider"`
	Address     string    `json:"address"`
	Seq         uint64    `json:"seq"`
	At          time.Time `json:"at"`
	FirstAt     time.Time `json:"first_at"`
	Deliveries  int       `json:"deliveries"`
	SameAttempt bool      `json:"same_attempt"` // under the first delivery's provider-side id (APNs)
}

// OrderReport says whether first deliveries kept the order of each user's
// sequence numbers, per address.
type OrderReport struct {
	Users             int         `json:"users"` // (user, address) pairs seen
	Reordered         uint64      `json:"reordered"`
	ReorderedAttempts uint64      `json:"reordered_attempts"` // the same of first attempts
	Examples          []Reordered `json:"examples"`
}

// Reordered is a first delivery that came after one with a higher number.
type Reordered struct {
	User     string   `json:"usr"`
	ID       string   `json:"id"`
	Provider Provider `json:"provider"`
	Seq      uint64   `json:"seq"`
	After    uint64   `json:"after"`
	At       int64    `json:"at"`      // Unix nanoseconds
	Attempt  bool     `json:"attempt"` // the first attempt came late, not only the first delivery
}

// BaseReport is the account of one request's receivers.
type BaseReport struct {
	Base       string  `json:"base"`
	Expected   uint32  `json:"expected"`
	IDs        uint64  `json:"ids"`        // distinct indexes delivered
	Deliveries uint64  `json:"deliveries"` // distinct (index, address) pairs
	Duplicates uint64  `json:"duplicates"`
	MissingN   uint64  `json:"missing_count"`    // indexes below Expected not delivered
	Missing    []Range `json:"missing"`          // the first maxRanges ranges of them
	Beyond     uint64  `json:"beyond,omitempty"` // delivered indexes that are not below Expected
}

// Range is a range of indexes, From <= i < To.
type Range struct {
	From uint32 `json:"from"`
	To   uint32 `json:"to"`
}

const maxRanges = 1000

// Lookup returns what is known of an id, one entry per address.
func (l *Ledger) Lookup(text string) []Delivery {
	id, err := notify.ParseID(text)
	foreign := err != nil
	if foreign {
		id = notify.ID{Base: foreignBase(text)}
	}
	s := &l.shards[id.Base[15]&63]
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.primary(id, foreign, text)
	if !first.used() {
		return nil
	}
	out := []Delivery{l.delivery(text, first)}
	for k, x := range s.extras {
		if k.base == id.Base && k.index == id.Index && k.fan == id.Fan {
			out = append(out, l.delivery(text, x))
		}
	}
	slices.SortFunc(out[1:], func(a, b Delivery) int { return cmp.Compare(a.Address, b.Address) })
	return out
}

func (s *shard) primary(id notify.ID, foreign bool, text string) slot {
	switch {
	case foreign:
		return s.foreign[text]
	case id.Fan:
		if f := s.fans[id.Base]; f != nil {
			if pg := f.pages[id.Index/pageSize]; pg != nil {
				return pg[id.Index%pageSize]
			}
		}
		return slot{}
	}
	return s.singles.get(id.Base)
}

// Delivered reports whether any address of id was taken.
func (l *Ledger) Delivered(text string) bool {
	id, err := notify.ParseID(text)
	foreign := err != nil
	if foreign {
		id = notify.ID{Base: foreignBase(text)}
	}
	s := &l.shards[id.Base[15]&63]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.primary(id, foreign, text).idCounted()
}

func (l *Ledger) delivery(id string, s slot) Delivery {
	return Delivery{
		ID: id, Provider: s.provider(), Address: hexAddr(s.addr), At: l.slotTime(s),
		Attempts: s.attempts(), Deliveries: s.deliveries(), Status: s.status(),
	}
}

func hexAddr(a uint32) string { return fmt.Sprintf("%08x", a) }

// Base reports which receivers 0..expected-1 of a fan-out were delivered.
func (l *Ledger) Base(b notify.Base, expected uint32) BaseReport {
	r := BaseReport{Base: b.String(), Expected: expected, Missing: []Range{}}
	s := &l.shards[b[15]&63]
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.fans[b]
	if f != nil {
		r.IDs, r.Deliveries, r.Duplicates = f.ids, f.deliveries, f.duplicates
	}
	below := uint64(0)
	open := false
	miss := func(i uint32) {
		r.MissingN++
		if n := len(r.Missing); open && r.Missing[n-1].To == i {
			r.Missing[n-1].To = i + 1
		} else if n < maxRanges {
			r.Missing = append(r.Missing, Range{i, i + 1})
			open = true
		} else {
			open = false
		}
	}
	for i := uint32(0); i < expected; i++ {
		var pg *page
		if f != nil {
			pg = f.pages[i/pageSize]
		}
		if pg != nil && pg[i%pageSize].idCounted() {
			below++
			continue
		}
		miss(i)
	}
	r.Beyond = r.IDs - below
	return r
}

// BaseCount is one fan-out in the list of them.
type BaseCount struct {
	Base       string `json:"base"`
	IDs        uint64 `json:"ids"`
	Deliveries uint64 `json:"deliveries"`
	Duplicates uint64 `json:"duplicates"`
}

// Bases lists the fan-outs seen, oldest first.
func (l *Ledger) Bases() []BaseCount {
	out := []BaseCount{}
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for b, f := range s.fans {
			out = append(out, BaseCount{b.String(), f.ids, f.deliveries, f.duplicates})
		}
		s.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b BaseCount) int { return cmp.Compare(a.Base, b.Base) })
	return out
}

// Duplicates returns up to limit pairs that were taken more than once, and the
// details of the last of those takes, in order.
func (l *Ledger) Duplicates(limit int) (pairs []Delivery, recent []Duplicate) {
	pairs = []Delivery{}
	for d := range l.All() {
		if len(pairs) >= limit {
			break
		}
		if d.Deliveries > 1 {
			pairs = append(pairs, d)
		}
	}
	l.recent.Lock()
	defer l.recent.Unlock()
	n := l.recent.next
	return pairs, append(append([]Duplicate{}, l.recent.dups[n:]...), l.recent.dups[:n]...)
}

// Order reports on the order of first deliveries.
func (l *Ledger) Order() OrderReport { return l.order.report() }

// All yields every pair, in no order. Each shard's singles, or one page of a
// fan-out, are a consistent copy; nothing is locked while the caller works.
func (l *Ledger) All() iter.Seq[Delivery] { return l.Since(time.Time{}) }

// Since yields what All does, for ids that were made at from or later. An id that does
// not tell when it was made counts from its first delivery. Skipped ids are not copied.
func (l *Ledger) Since(from time.Time) iter.Seq[Delivery] {
	return func(yield func(Delivery) bool) {
		for i := range l.shards {
			if !l.shards[i].since(l, from, yield) {
				return
			}
		}
	}
}

func (s *shard) since(l *Ledger, from time.Time, yield func(Delivery) bool) bool {
	old := func(b notify.Base) bool { return b.Time().Before(from) }
	s.mu.Lock()
	var few []Delivery
	for b, x := range s.singles.all() {
		if old(b) {
			continue
		}
		few = append(few, l.delivery(notify.ID{Base: b}.String(), x))
	}
	for t, x := range s.foreign {
		if l.slotTime(x).Before(from) {
			continue
		}
		few = append(few, l.delivery(t, x))
	}
	for k, x := range s.extras {
		text, ok := s.names[k.base]
		if ok && l.slotTime(x).Before(from) || !ok && old(k.base) {
			continue
		}
		if !ok {
			text = notify.ID{Base: k.base, Index: k.index, Fan: k.fan}.String()
		}
		few = append(few, l.delivery(text, x))
	}
	bases := make([]notify.Base, 0, len(s.fans))
	for b := range s.fans {
		if !old(b) {
			bases = append(bases, b)
		}
	}
	s.mu.Unlock()

	for _, d := range few {
		if !yield(d) {
			return false
		}
	}
	for _, b := range bases {
		s.mu.Lock()
		f := s.fans[b]
		var numbers []uint32
		if f != nil {
			for n := range f.pages {
				numbers = append(numbers, n)
			}
		}
		s.mu.Unlock()
		slices.Sort(numbers)
		for _, n := range numbers {
			s.mu.Lock()
			pg := *f.pages[n] // 3 KB; pages are never removed from a fan
			s.mu.Unlock()
			for i, x := range pg {
				if !x.used() {
					continue
				}
				id := notify.ID{Base: b, Index: n*pageSize + uint32(i), Fan: true}
				if !yield(l.delivery(id.String(), x)) {
					return false
				}
			}
		}
	}
	return true
}
