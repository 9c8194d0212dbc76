package simulator

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Totals counts what one provider received, or all providers together.
type Totals struct {
	Requests uint64 `json:"requests"` // HTTP requests that were read to their end
	// Receivers is the number of receivers in these requests. Only a request to SendGrid can have
	// several.
	Receivers  uint64 `json:"receivers"`
	Accepted   uint64 `json:"accepted"`   // receivers of requests that were answered with 2xx
	Ambiguous  uint64 `json:"ambiguous"`  // receivers that were taken, but the caller does not know it
	Rejected   uint64 `json:"rejected"`   // receivers that were refused, or whose connection ended before they were taken
	IDs        uint64 `json:"ids"`        // distinct notification ids taken
	Deliveries uint64 `json:"deliveries"` // distinct (id, address) pairs taken
	Duplicates uint64 `json:"duplicates"` // how often a pair was taken after the first time
	NoID       uint64 `json:"no_id"`      // receivers without a notification id
	// Untracked counts receivers whose ids are not notification ids and were not recorded, because
	// there are too many such ids.
	Untracked uint64 `json:"untracked"`

	// Status counts receivers by the HTTP status of the answer. The key "none" means no answer.
	Status map[string]uint64 `json:"status"`
}

// Summary is the state of the whole ledger.
type Summary struct {
	Totals
	Providers map[string]Totals `json:"providers"`
	Order     OrderReport       `json:"order"`
	Disk      int64             `json:"disk"`                 // bytes on disk, for data that does not fit into memory
	FileError string            `json:"file_error,omitempty"` // error that ended writing to the ledger file
	DiskError string            `json:"disk_error,omitempty"` // first error of the disk; counts since then may be wrong
}

// Summary returns the counts of everything so far.
func (l *Ledger) Summary() Summary {
	out := Summary{Providers: map[string]Totals{}, Totals: Totals{Status: map[string]uint64{}}, Order: l.Order()}
	l.mu.Lock()
	defer l.mu.Unlock()
	out.Disk = l.pairs.diskBytes() + l.arrivals.onDisk*arrivalBytes + int64(l.orders.inFile)*orderRow
	if err := cmp.Or(l.pairs.err, l.orders.err); err != nil {
		out.DiskError = err.Error()
	}
	for i := range l.providerCounts {
		t := l.providerCounts[i].Totals
		t.Status = map[string]uint64{}
		for status, n := range l.providerCounts[i].status {
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

// Delivery describes one id at one address.
type Delivery struct {
	ID         string    `json:"id"`
	Provider   Provider  `json:"provider"`
	Address    string    `json:"address"` // low 32 bits of the hash of the address
	At         time.Time `json:"at"`      // time of the first delivery; before a delivery, time of the first attempt
	Attempts   int       `json:"attempts"`
	Deliveries int       `json:"deliveries"` // how often the provider took the message
	Status     int       `json:"status"`     // status of the last answer; 0: no answer
}

// Duplicate describes a delivery of an (id, address) pair that had been delivered before.
type Duplicate struct {
	ID          string    `json:"id"`
	Provider    Provider  `json:"provider"`
	Address     string    `json:"address"`
	Seq         uint64    `json:"seq"` // number in the ledger
	At          time.Time `json:"at"`
	FirstAt     time.Time `json:"first_at"`
	Deliveries  int       `json:"deliveries"`   // number of deliveries of the pair, including this delivery
	SameAttempt bool      `json:"same_attempt"` // true: the request had the attempt id of the first delivery (APNs)
}

// OrderReport says whether first deliveries kept the order of the sequence numbers of each user at
// each address.
type OrderReport struct {
	Users int `json:"users"` // number of (user, address) pairs
	// Pending counts first attempts and first deliveries whose order was not checked yet. They wait
	// only while not all users fit into memory.
	Pending           uint64      `json:"pending,omitempty"`
	Reordered         uint64      `json:"reordered"`          // first deliveries that came out of order
	ReorderedAttempts uint64      `json:"reordered_attempts"` // first attempts that came out of order
	Examples          []Reordered `json:"examples"`           // the first examples; added only while all users fit into memory
}

// Reordered is a first delivery or first attempt that came after a higher sequence number.
type Reordered struct {
	User     string   `json:"usr"`
	ID       string   `json:"id"`
	Provider Provider `json:"provider"`
	Seq      uint64   `json:"seq"`
	After    uint64   `json:"after"`   // the higher sequence number
	At       int64    `json:"at"`      // Unix nanoseconds
	Attempt  bool     `json:"attempt"` // true: a first attempt came out of order; false: only a first delivery did
}

// BaseReport says which receivers of one fan-out were delivered.
type BaseReport struct {
	Base       string  `json:"base"`
	Expected   uint32  `json:"expected"`
	IDs        uint64  `json:"ids"`        // distinct indexes that were delivered
	Deliveries uint64  `json:"deliveries"` // distinct (index, address) pairs that were delivered
	Duplicates uint64  `json:"duplicates"`
	MissingN   uint64  `json:"missing_count"`    // number of indexes below Expected that were not delivered
	Missing    []Range `json:"missing"`          // ranges of these indexes; only the first maxRanges ranges
	Beyond     uint64  `json:"beyond,omitempty"` // number of delivered indexes that are not below Expected
	// Bits is set only if the caller wants bits. Bit i is set if index i below Expected was
	// delivered. The lowest bit of a byte comes first.
	Bits []byte `json:"bits,omitempty"`
}

// Range is the range of indexes i with From <= i < To.
type Range struct {
	From uint32 `json:"from"`
	To   uint32 `json:"to"`
}

const maxRanges = 1000

// Lookup returns what the ledger knows about an id: one Delivery for each address.
func (l *Ledger) Lookup(text string) []Delivery {
	id, _ := parseID(text)
	k, i := keyOf(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Delivery
	for s := l.pairs.newestVersion(&k, i); s.attempts > 0; s = l.pairs.newestVersion(&k, i) {
		out = append(out, deliveryOf(text, s))
		k.layer++
	}
	if len(out) > 1 {
		slices.SortFunc(out[1:], func(a, b Delivery) int { return cmp.Compare(a.Address, b.Address) })
	}
	return out
}

// Delivered returns true if the id was delivered to at least one address.
func (l *Ledger) Delivered(text string) bool {
	id, _ := parseID(text)
	k, i := keyOf(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.newestVersion(&k, i).idCounted
}

func deliveryOf(id string, s pairSlot) Delivery {
	return Delivery{
		ID: id, Provider: s.provider, Address: hexAddr(s.addr), At: time.Unix(0, s.at),
		Attempts: int(s.attempts), Deliveries: int(s.deliveries), Status: int(s.status),
	}
}

func hexAddr(a uint32) string { return fmt.Sprintf("%08x", a) }

// Base reports which of the receivers 0 to expected-1 of a fan-out were delivered.
func (l *Ledger) Base(b notify.Base, expected uint32) BaseReport {
	return l.baseReport(b, expected, false)
}

func (l *Ledger) baseReport(b notify.Base, expected uint32, wantBits bool) BaseReport {
	r := BaseReport{Base: b.String(), Expected: expected, Missing: []Range{}}
	if wantBits {
		r.Bits = make([]byte, (expected+7)/8)
	}
	next := uint32(0) // r already counts all indexes below next
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
	mem, runs := l.pairs.fanoutPagesInMemory(b), slices.Clone(l.pairs.runs)
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
		for i, s := range p.usedSlots() {
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

// BaseCount counts the deliveries of one fan-out.
type BaseCount struct {
	Base       string `json:"base"`
	IDs        uint64 `json:"ids"`
	Deliveries uint64 `json:"deliveries"`
	Duplicates uint64 `json:"duplicates"`
}

func (c *BaseCount) add(k *pageKey, p *pairPage) {
	for _, s := range p.usedSlots() {
		c.IDs += b2u(k.layer == 0 && s.idCounted)
		if s.deliveries > 0 {
			c.Deliveries++
			c.Duplicates += uint64(s.deliveries) - 1
		}
	}
}

// Bases lists the fan-outs, the oldest fan-out first. It reads all pairs.
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

// Duplicates returns up to limit pairs that were taken more than once. The result recent has the
// details of the last duplicates, in order. Duplicates stops reading when it has found all
// duplicates or limit pairs.
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
	return pairs, append(append([]Duplicate{}, l.recentDuplicates[l.nextDuplicate:]...), l.recentDuplicates[:l.nextDuplicate]...)
}

// Order reports on the order of first attempts and first deliveries. It leaves out those that wait
// for a merge (see OrderReport.Pending). After Settle none of them waits.
func (l *Ledger) Order() OrderReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.orders
	return OrderReport{
		Users: o.inFile + len(o.users), Pending: o.pending(), Reordered: o.late, ReorderedAttempts: o.lateTries,
		Examples: append([]Reordered{}, l.examples...),
	}
}

// arrivalsEnd returns the cursor after the last arrival. A later arrival then begins a new row.
func (l *Ledger) arrivalsEnd() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrivals.lastRowOpen = false
	return l.arrivals.rows()
}

// Arrivals returns the rows from the row at the cursor on, and the cursor for the next call. It
// returns an error of notify.KindInvalid if the cursor is after the end. This happens after a
// Reset.
func (l *Ledger) Arrivals(cursor int64) (rows []byte, next int64, err error) {
	l.mu.Lock()
	a := l.arrivals
	end, onDisk := a.rows(), a.onDisk
	if cursor >= onDisk && cursor <= end {
		rows = a.inMemory(cursor, maxArrivalsAnswer)
	}
	l.mu.Unlock()
	if cursor < 0 || cursor > end {
		return nil, 0, notify.Invalid("bad_cursor", "since", fmt.Sprintf("is the cursor %d, but the ledger ends at the cursor %d: it has been reset", cursor, end))
	}
	if cursor < onDisk { // rows on disk do not change, so they can be read without a lock
		rows = make([]byte, min(maxArrivalsAnswer, (onDisk-cursor)*arrivalBytes))
		if _, err := a.f.ReadAt(rows, cursor*arrivalBytes); err != nil {
			return nil, 0, fmt.Errorf("cannot read the arrivals of the ledger: %w", unexpectedEOF(err))
		}
	}
	return rows, cursor + int64(len(rows))/arrivalBytes, nil
}
