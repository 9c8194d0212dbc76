package simulator

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Outcome is what became of a receiver of a request.
type Outcome uint8

// The outcomes. An ambiguous one was taken by the provider, but the caller was
// not told: the connection was reset, or no answer came. Taken, an accepted or
// ambiguous one, is what the ledger counts as a delivery.
const (
	Rejected Outcome = iota
	Accepted
	Ambiguous
)

var outcomeNames = [...]string{"rejected", "accepted", "ambiguous"}

func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "unknown"
}

func (o Outcome) taken() bool { return o != Rejected }

// entry is one receiver of one request, on its way into the ledger.
type entry struct {
	seq      uint64 // of the ledger, from 1
	at       int64  // wall time the body had been read, Unix nanoseconds
	provider Provider
	outcome  Outcome
	status   int    // answered; 0 when nothing was
	id       string // notification id; empty when the request carried none
	attempt  string // provider-side id of the attempt, APNs only
	addr     uint64 // hash of the address
	user     string // empty when the payload carried none
	userSeq  uint64
}

// Ledger counts every receiver of every request. It is the proof of the torture
// and load runs, so it is exact in what it counts: distinct (id, address) pairs
// taken, and every take after the first of a pair, a duplicate. A user with two
// devices is two pairs of one id. Addresses are compared by 32 bits of a hash.
//
// It is safe for concurrent use. Recording takes 0.2 us for a receiver of a
// fan-out, 0.5 for a single; in memory 12 bytes, in pages of 256 neighbours, and
// 38 to 75. The order of users takes 24 bytes and more for each.
type Ledger struct {
	now   func() time.Time
	start atomic.Int64 // Unix nanoseconds; slots count from here
	seq   atomic.Uint64
	count [providers]counters

	shards [64]shard
	order  orderBook
	file   *ledgerFile // nil without Config.LedgerFile

	recent struct {
		sync.Mutex
		dups []Duplicate // a ring of the last keepDups
		next int         // where the next one goes once it is full
	}
}

// keepDups bounds the duplicates kept with all their details.
const keepDups = 1000

// foreignMax bounds the ids kept that are not notification ids.
const foreignMax = 1 << 20

type counters struct {
	requests, receivers, accepted, ambiguous, rejected atomic.Uint64
	deliveries, ids, duplicates, noID, untracked       atomic.Uint64
	status                                             [len(statuses)]atomic.Uint64
}

// shard holds the ids whose base ends in the same six bits.
type shard struct {
	mu      sync.Mutex
	singles singles
	fans    map[notify.Base]*fan
	foreign map[string]slot // ids of another form, by their text
	extras  map[extraKey]slot
	names   map[notify.Base]string // of foreign ids, for extras
}

// extraKey finds the slot of an id's second and further addresses.
type extraKey struct {
	base  notify.Base
	index uint32
	fan   bool
	addr  uint32
}

// fan is the receivers of one fan-out.
type fan struct {
	pages      map[uint32]*page // by index / pageSize
	ids        uint64           // distinct indexes delivered
	deliveries uint64           // distinct (index, address) pairs
	duplicates uint64
}

const pageSize = 256

type page [pageSize]slot

// slot is one (id, address) pair. The times are 100 us from the ledger's start,
// which reaches 119 hours; later ones are kept as that.
type slot struct {
	addr    uint32
	at      uint32 // first delivery, or first attempt before there is one
	attempt uint16 // hash of the first delivery's attempt id; 0: it had none
	counts  uint8  // attempts in the low half, deliveries in the high; each stops at 15
	meta    uint8  // provider (2 bits), id counted (1 bit), last status (5 bits)
}

const slotTick = int64(100 * time.Microsecond)

func (s slot) attempts() int      { return int(s.counts & 15) }
func (s slot) deliveries() int    { return int(s.counts >> 4) }
func (s slot) used() bool         { return s.counts != 0 }
func (s slot) provider() Provider { return Provider(s.meta&3) + 1 }
func (s slot) idCounted() bool    { return s.meta&4 != 0 }
func (s slot) status() int        { return statuses[s.meta>>3] }

// statuses are those a slot tells apart; the last stands for any other.
var statuses = [...]int{0, 200, 201, 202, 400, 401, 403, 404, 405, 406, 408, 409, 410, 413, 415, 422, 429, 451, 500, 501, 502, 503, 504, -1}

func statusIndex(code int) int {
	for i, s := range statuses {
		if s == code {
			return i
		}
	}
	return len(statuses) - 1
}

func newLedger(now func() time.Time) *Ledger {
	l := &Ledger{now: now}
	_ = l.Reset() // no file yet: cannot fail
	return l
}

// Reset forgets everything, in the file as well.
func (l *Ledger) Reset() error {
	for i := range l.shards {
		l.shards[i].mu.Lock()
		defer l.shards[i].mu.Unlock() //nolint:gocritic // all are held to the end
	}
	for i := range l.shards {
		s := &l.shards[i]
		s.singles = singles{}
		s.fans = map[notify.Base]*fan{}
		s.foreign = map[string]slot{}
		s.extras = map[extraKey]slot{}
		s.names = map[notify.Base]string{}
	}
	for i := range l.count {
		l.count[i].reset()
	}
	l.start.Store(l.now().UnixNano())
	l.seq.Store(0)
	l.order.reset()
	l.recent.Lock()
	l.recent.dups, l.recent.next = nil, 0
	l.recent.Unlock()
	if l.file != nil {
		return l.file.truncate()
	}
	return nil
}

func (c *counters) reset() {
	for _, n := range []*atomic.Uint64{&c.requests, &c.receivers, &c.accepted, &c.ambiguous, &c.rejected, &c.deliveries, &c.ids, &c.duplicates, &c.noID, &c.untracked} {
		n.Store(0)
	}
	for i := range c.status {
		c.status[i].Store(0)
	}
}

// request counts one request, whatever its receivers.
func (l *Ledger) request(p Provider) { l.count[p-1].requests.Add(1) }

// record adds one receiver. It sets e.seq.
func (l *Ledger) record(e *entry) {
	e.seq = l.seq.Add(1)
	l.apply(e)
	if l.file != nil {
		l.file.append(e)
	}
}

// apply counts e; the file's records come through here again after a restart.
func (l *Ledger) apply(e *entry) {
	c := &l.count[e.provider-1]
	si := statusIndex(e.status)
	c.receivers.Add(1)
	c.status[si].Add(1)
	switch e.outcome {
	case Accepted:
		c.accepted.Add(1)
	case Ambiguous:
		c.ambiguous.Add(1)
	default:
		c.rejected.Add(1)
	}
	if e.id == "" {
		c.noID.Add(1)
		return
	}

	id, err := notify.ParseID(e.id)
	foreign := err != nil
	if foreign {
		id = notify.ID{Base: foreignBase(e.id)}
	}
	s := &l.shards[id.Base[15]&63]
	s.mu.Lock()
	h, ok := s.hit(id, foreign, e, si, l.start.Load())
	s.mu.Unlock()
	if !ok {
		c.untracked.Add(1)
		return
	}
	if h.firstOfID {
		c.ids.Add(1)
	}
	if h.first {
		c.deliveries.Add(1)
	}
	if h.duplicate {
		c.duplicates.Add(1)
		l.keepDuplicate(e, h.before)
	}
	if e.user != "" {
		l.order.see(e, h)
	}
}

// hit is what one more request meant for its slot.
type hit struct {
	firstTry  bool // the pair was never seen before
	first     bool // its first delivery
	firstOfID bool // the first of the id, over all addresses
	duplicate bool
	before    slot // as it was
}

// hit finds e's slot and counts it; false when it cannot be kept.
func (s *shard) hit(id notify.ID, foreign bool, e *entry, status int, start int64) (hit, bool) {
	var f *fan
	var first slot
	switch {
	case foreign:
		var known bool
		if first, known = s.foreign[e.id]; !known {
			if len(s.foreign) >= foreignMax/64 {
				return hit{}, false
			}
			s.names[id.Base] = e.id
		}
	case id.Fan:
		if f = s.fans[id.Base]; f == nil {
			f = &fan{pages: map[uint32]*page{}}
			s.fans[id.Base] = f
		}
		pg := f.pages[id.Index/pageSize]
		if pg == nil {
			pg = new(page)
			f.pages[id.Index/pageSize] = pg
		}
		first = pg[id.Index%pageSize]
	default:
		first = s.singles.get(id.Base)
	}

	addr := uint32(e.addr)
	var h hit
	if !first.used() || first.addr == addr {
		h = first.take(e, addr, status, start)
	} else {
		k := extraKey{id.Base, id.Index, id.Fan, addr}
		x := s.extras[k]
		h = x.take(e, addr, status, start)
		s.extras[k] = x
	}
	if h.first && !first.idCounted() {
		h.firstOfID = true
		first.meta |= 4
	}
	switch {
	case foreign:
		s.foreign[e.id] = first
	case id.Fan:
		f.pages[id.Index/pageSize][id.Index%pageSize] = first
		f.ids += b2u(h.firstOfID)
		f.deliveries += b2u(h.first)
		f.duplicates += b2u(h.duplicate)
	default:
		s.singles.put(id.Base, first)
	}
	return h, true
}

func (s *slot) take(e *entry, addr uint32, status int, start int64) hit {
	h := hit{firstTry: !s.used(), before: *s}
	tick := max(0, e.at-start) / slotTick
	at := uint32(min(tick, 1<<32-1))
	if h.firstTry {
		s.addr, s.at = addr, at
	}
	if s.attempts() < 15 {
		s.counts++
	}
	if e.outcome.taken() {
		h.first = s.deliveries() == 0
		h.duplicate = !h.first
		if h.first {
			s.at, s.attempt = at, attemptHash(e.attempt)
		}
		if s.deliveries() < 15 {
			s.counts += 16
		}
	}
	s.meta = s.meta&4 | uint8(e.provider-1) | uint8(status)<<3
	return h
}

func (l *Ledger) keepDuplicate(e *entry, before slot) {
	d := Duplicate{
		ID: e.id, Provider: e.provider, Address: hexAddr(uint32(e.addr)), Seq: e.seq,
		At: time.Unix(0, e.at), FirstAt: l.slotTime(before), Deliveries: before.deliveries() + 1,
		SameAttempt: e.attempt != "" && before.attempt == attemptHash(e.attempt),
	}
	l.recent.Lock()
	defer l.recent.Unlock()
	if len(l.recent.dups) < keepDups {
		l.recent.dups = append(l.recent.dups, d)
		return
	}
	l.recent.dups[l.recent.next] = d
	l.recent.next = (l.recent.next + 1) % keepDups
}

func (l *Ledger) slotTime(s slot) time.Time { return time.Unix(0, l.start.Load()+int64(s.at)*slotTick) }

// close flushes and closes the file.
func (l *Ledger) close() error {
	if l.file == nil {
		return nil
	}
	return errors.Join(l.file.flush(), l.file.f.Close())
}

func attemptHash(s string) uint16 {
	if s == "" {
		return 0
	}
	return uint16(xxhash.Sum64String(s)) | 1
}

// foreignBase gives an id that is none of ours a place among the bases.
func foreignBase(s string) notify.Base {
	var b notify.Base
	h := xxhash.Sum64String(s)
	binary.LittleEndian.PutUint64(b[:], h)
	binary.LittleEndian.PutUint64(b[8:], mix(h, uint64(len(s))))
	return b
}

func addrHash(s string) uint64 { return xxhash.Sum64String(s) }

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
