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

// Summary counts everything so far.
func (l *Ledger) Summary() Summary {
	out := Summary{Providers: map[string]Totals{}, Totals: Totals{Status: map[string]uint64{}}, Order: l.Order()}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.count {
		t := l.count[i].Totals
		t.Status = map[string]uint64{}
		for status, n := range l.count[i].status {
			t.Status[statusName(status)] = n
			out.Status[statusName(status)] += n
		}
		out.Providers[Provider(i+1).String()] = t
		out.add(&t)
	}
	if l.file != nil {
		if err := l.file.failure(); err != nil {
			out.FileError = err.Error()
		}
	}
	return out
}

func (t *Totals) add(o *Totals) {
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
	if code == 0 {
		return "none"
	}
	return strconv.Itoa(code)
}

// Delivery is what the ledger knows of one id at one address.
type Delivery struct {
	ID         string    `json:"id"`
	Provider   Provider  `json:"provider"`
	Address    string    `json:"address"` // the low 32 bits of the address's hash
	At         time.Time `json:"at"`      // first delivery, else first attempt
	Attempts   int       `json:"attempts"`
	Deliveries int       `json:"deliveries"` // takes
	Status     int       `json:"status"`     // last answer; 0: none
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
	id, _ := parse(text)
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.shardOf(id.Base)
	first := s.get(id)
	if first.attempts == 0 {
		return nil
	}
	out := []Delivery{delivery(text, first)}
	for k, x := range s.more {
		if k.id == id {
			out = append(out, delivery(text, x))
		}
	}
	slices.SortFunc(out[1:], func(a, b Delivery) int { return cmp.Compare(a.Address, b.Address) })
	return out
}

// Delivered reports whether any address of id was taken.
func (l *Ledger) Delivered(text string) bool {
	id, _ := parse(text)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shardOf(id.Base).get(id).idCounted
}

func delivery(id string, s slot) Delivery {
	return Delivery{
		ID: id, Provider: s.provider, Address: hexAddr(s.addr), At: time.Unix(0, s.at),
		Attempts: int(s.attempts), Deliveries: int(s.deliveries), Status: int(s.status),
	}
}

func hexAddr(a uint32) string { return fmt.Sprintf("%08x", a) }

// Base reports which receivers 0..expected-1 of a fan-out were delivered.
func (l *Ledger) Base(b notify.Base, expected uint32) BaseReport {
	r := BaseReport{Base: b.String(), Expected: expected, Missing: []Range{}}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.shardOf(b)
	if f := s.fans[b]; f != nil {
		r.IDs, r.Deliveries, r.Duplicates = f.IDs, f.Deliveries, f.Duplicates
	}
	for i := range expected {
		if s.get(notify.ID{Base: b, Index: i, Fan: true}).idCounted {
			continue
		}
		r.MissingN++
		if n := len(r.Missing); n > 0 && r.Missing[n-1].To == i {
			r.Missing[n-1].To = i + 1
		} else if n < maxRanges {
			r.Missing = append(r.Missing, Range{i, i + 1})
		}
	}
	r.Beyond = r.IDs + r.MissingN - uint64(expected)
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
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []BaseCount{}
	for i := range l.shards {
		for _, f := range l.shards[i].fans {
			out = append(out, f.BaseCount)
		}
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
	l.mu.Lock()
	defer l.mu.Unlock()
	return pairs, append(append([]Duplicate{}, l.dups[l.nextDup:]...), l.dups[:l.nextDup]...)
}

// Order reports on the order of first deliveries.
func (l *Ledger) Order() OrderReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.order
	r.Users, r.Examples = len(l.users), append([]Reordered{}, r.Examples...)
	return r
}

// All yields every pair, in no order. Each shard is a consistent copy; nothing is
// locked while the caller works.
func (l *Ledger) All() iter.Seq[Delivery] { return l.Since(time.Time{}) }

// Since yields what All does, for ids that were made at from or later. An id that does
// not tell when it was made counts from its first delivery. Skipped ids are not copied.
func (l *Ledger) Since(from time.Time) iter.Seq[Delivery] {
	type pair struct {
		id   notify.ID
		text string // empty: that of id
		slot slot
	}
	return func(yield func(Delivery) bool) {
		for i := range l.shards {
			var kept []pair
			keep := func(id notify.ID, x slot) {
				text := l.foreign[id]
				made := id.Base.Time()
				if text != "" {
					made = time.Unix(0, x.at)
				}
				if x.attempts > 0 && !made.Before(from) {
					kept = append(kept, pair{id, text, x})
				}
			}
			l.mu.Lock()
			s := &l.shards[i]
			for b, x := range s.singles {
				keep(notify.ID{Base: b}, x)
			}
			for b, f := range s.fans {
				if b.Time().Before(from) {
					continue
				}
				for n, pg := range f.pages {
					for i, x := range pg {
						keep(notify.ID{Base: b, Index: n*pageSize + uint32(i), Fan: true}, x)
					}
				}
			}
			for k, x := range s.more {
				keep(k.id, x)
			}
			l.mu.Unlock()
			for _, p := range kept {
				if p.text == "" {
					p.text = p.id.String()
				}
				if !yield(delivery(p.text, p.slot)) {
					return
				}
			}
		}
	}
}
