package simulator

import (
	"cmp"
	"fmt"
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
	Disk      int64             `json:"disk"`                 // bytes of what memory had no room for
	FileError string            `json:"file_error,omitempty"` // why the ledger file stopped
	DiskError string            `json:"disk_error,omitempty"` // why memory found no room on disk; counts since then may be wrong
}

// Summary counts everything so far.
func (l *Ledger) Summary() Summary {
	out := Summary{Providers: map[string]Totals{}, Totals: Totals{Status: map[string]uint64{}}, Order: l.Order()}
	l.mu.Lock()
	defer l.mu.Unlock()
	out.Disk = l.pairs.diskBytes() + l.arrivals.onDisk*arrivalBytes + int64(l.orders.inFile)*orderRow
	if err := cmp.Or(l.pairs.err, l.orders.err); err != nil {
		out.DiskError = err.Error()
	}
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
	Users             int         `json:"users"`             // (user, address) pairs seen
	Pending           uint64      `json:"pending,omitempty"` // deliveries that are not compared yet: there are more users than memory holds
	Reordered         uint64      `json:"reordered"`
	ReorderedAttempts uint64      `json:"reordered_attempts"` // the same of first attempts
	Examples          []Reordered `json:"examples"`           // the first ones, while all users fit in memory
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
	Bits       []byte  `json:"bits,omitempty"`   // where asked for: of each index below Expected whether it was delivered, the lowest bit first
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
	k, i := keyOf(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Delivery
	for s := l.pairs.newest(&k, i); s.attempts > 0; s = l.pairs.newest(&k, i) {
		out = append(out, delivery(text, s))
		k.layer++
	}
	if len(out) > 1 {
		slices.SortFunc(out[1:], func(a, b Delivery) int { return cmp.Compare(a.Address, b.Address) })
	}
	return out
}

// Delivered reports whether any address of id was taken.
func (l *Ledger) Delivered(text string) bool {
	id, _ := parse(text)
	k, i := keyOf(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.newest(&k, i).idCounted
}

func delivery(id string, s slot) Delivery {
	return Delivery{
		ID: id, Provider: s.provider, Address: hexAddr(s.addr), At: time.Unix(0, s.at),
		Attempts: int(s.attempts), Deliveries: int(s.deliveries), Status: int(s.status),
	}
}

func hexAddr(a uint32) string { return fmt.Sprintf("%08x", a) }

// Base reports which receivers 0..expected-1 of a fan-out were delivered.
func (l *Ledger) Base(b notify.Base, expected uint32) BaseReport { return l.base(b, expected, false) }

func (l *Ledger) base(b notify.Base, expected uint32, wantBits bool) BaseReport {
	r := BaseReport{Base: b.String(), Expected: expected, Missing: []Range{}}
	if wantBits {
		r.Bits = make([]byte, (expected+7)/8)
	}
	next := uint32(0) // what is below is in r
	missing := func(to uint32) {
		if to <= next {
			return
		}
		r.MissingN += uint64(to - next)
		if n := len(r.Missing); n > 0 && r.Missing[n-1].To == next {
			r.Missing[n-1].To = to
		} else if n < maxRanges {
			r.Missing = append(r.Missing, Range{next, to})
		}
	}
	l.mu.Lock()
	mem, runs := l.pairs.fanInMemory(b), slices.Clone(l.pairs.runs)
	l.mu.Unlock()
	var count BaseCount
	for k, p := range l.pages(mem, runs, pageKey{base: b, fan: true}) {
		if k.base != b || !k.fan {
			break
		}
		count.add(k, p)
		if k.layer > 0 {
			continue
		}
		for i, s := range p.used() {
			n := k.page*pageSize + uint32(i)
			if !s.idCounted || n >= expected {
				continue
			}
			missing(n)
			next = n + 1
			if wantBits {
				r.Bits[n/8] |= 1 << (n % 8)
			}
		}
	}
	missing(expected)
	r.IDs, r.Deliveries, r.Duplicates = count.IDs, count.Deliveries, count.Duplicates
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

func (c *BaseCount) add(k *pageKey, p *page) {
	for _, s := range p.used() {
		c.IDs += b2u(k.layer == 0 && s.idCounted)
		if s.deliveries > 0 {
			c.Deliveries++
			c.Duplicates += uint64(s.deliveries) - 1
		}
	}
}

// Bases lists the fan-outs seen, oldest first. It reads all that there is.
func (l *Ledger) Bases() []BaseCount {
	out := []BaseCount{}
	var last notify.Base
	for k, p := range l.allPages(notify.Base{}) {
		if !k.fan {
			continue
		}
		if len(out) == 0 || last != k.base {
			out, last = append(out, BaseCount{Base: k.base.String()}), k.base
		}
		out[len(out)-1].add(k, p)
	}
	return out
}

// Duplicates returns up to limit pairs that were taken more than once, and the
// details of the last of those takes, in order. It reads the pairs until it has found
// as many duplicates as there are.
func (l *Ledger) Duplicates(limit int) (pairs []Delivery, recent []Duplicate) {
	pairs = []Delivery{}
	rest := l.Summary().Duplicates
	if limit > 0 && rest > 0 {
		for d := range l.All() {
			if d.Deliveries > 1 {
				pairs = append(pairs, d)
				rest -= min(rest, uint64(d.Deliveries)-1)
			}
			if len(pairs) >= limit || rest == 0 {
				break
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return pairs, append(append([]Duplicate{}, l.dups[l.nextDup:]...), l.dups[:l.nextDup]...)
}

// Order reports on the order of first deliveries that were compared: all of them after
// Settle.
func (l *Ledger) Order() OrderReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.orders
	return OrderReport{
		Users: o.inFile + len(o.users), Pending: o.pending(), Reordered: o.late, ReorderedAttempts: o.lateTries,
		Examples: append([]Reordered{}, l.examples...),
	}
}

// end is the cursor behind the last arrival, which grows no more.
func (l *Ledger) end() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrivals.open = false
	return l.arrivals.rows()
}

// Arrivals returns rows from a cursor on and the cursor behind them. A cursor that is
// beyond the end, as after a Reset, is an error of notify.KindInvalid.
func (l *Ledger) Arrivals(from int64) (rows []byte, next int64, err error) {
	l.mu.Lock()
	a := l.arrivals
	end, onDisk := a.rows(), a.onDisk
	if from >= onDisk && from <= end {
		rows = a.inMemory(from, arrivalsMost)
	}
	l.mu.Unlock()
	if from < 0 || from > end {
		return nil, 0, notify.Invalid("bad_cursor", "since", fmt.Sprintf("is a cursor of this ledger, which ends at %d: it has been reset", end))
	}
	if from < onDisk { // what is on disk does not change
		rows = make([]byte, min(arrivalsMost, (onDisk-from)*arrivalBytes))
		if _, err := a.f.ReadAt(rows, from*arrivalBytes); err != nil {
			return nil, 0, fmt.Errorf("arrivals: %w", errEarly(err))
		}
	}
	return rows, from + int64(len(rows))/arrivalBytes, nil
}
