package simulator

import (
	"encoding/binary"
	"sync"
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
// It is safe for concurrent use.
type Ledger struct {
	now  func() time.Time
	file *ledgerFile // nil without Config.LedgerFile

	mu      sync.Mutex // guards what follows
	seq     uint64
	count   [providers]providerCount
	shards  [64]shard            // parts of one map, each small enough to be copied under mu
	foreign map[notify.ID]string // texts of the ids of another form
	users   map[uint64]userOrder // by user and address
	order   OrderReport          // but for Users
	dups    []Duplicate          // a ring of the last keepDups
	nextDup int                  // where the next one goes once the ring is full
}

const (
	keepDups      = 1000    // duplicates kept with all their details
	keepReordered = 100     // examples kept
	foreignMax    = 1 << 20 // ids kept that are not notification ids
)

type providerCount struct {
	Totals
	status map[int]uint64
}

// shard holds the pairs whose base ends in the same six bits.
type shard struct {
	singles map[notify.Base]slot // of an id, its first address; also of foreign ids
	fans    map[notify.Base]*fan
	more    map[pairKey]slot // further addresses of an id
}

// fan is the receivers of one fan-out. Pages of neighbours take a third of the time
// and a fifth of the memory of a map of ids.
type fan struct {
	BaseCount
	pages map[uint32]*[pageSize]slot // by index / pageSize
}

const pageSize = 256

// get returns the first slot of an id; an unused one when there is none.
func (s *shard) get(id notify.ID) slot {
	if !id.Fan {
		return s.singles[id.Base]
	}
	if f := s.fans[id.Base]; f != nil {
		if pg := f.pages[id.Index/pageSize]; pg != nil {
			return pg[id.Index%pageSize]
		}
	}
	return slot{}
}

// put sets the first slot of an id. Of a fan-out, the fan is there already.
func (s *shard) put(id notify.ID, x slot) {
	if !id.Fan {
		s.singles[id.Base] = x
		return
	}
	pages := s.fans[id.Base].pages
	pg := pages[id.Index/pageSize]
	if pg == nil {
		pg = new([pageSize]slot)
		pages[id.Index/pageSize] = pg
	}
	pg[id.Index%pageSize] = x
}

type pairKey struct {
	id   notify.ID
	addr uint32
}

// slot is what is known of one (id, address) pair. It holds no pointers, so that
// the garbage collector does not look at millions of them.
type slot struct {
	at         int64 // first delivery, or first attempt before there is one; Unix nanoseconds
	addr       uint32
	attempts   uint16 // both stop at the most there may be
	deliveries uint16
	attempt    uint16 // hash of the first delivery's attempt id; 0: it had none
	status     int16  // the last one
	provider   Provider
	idCounted  bool // of an id's first slot: some address of it was taken
}

// userOrder is the highest sequence number seen of a user at an address, at a first
// attempt and at a first delivery. A first one below the highest came out of order.
type userOrder struct{ tried, taken uint64 }

func newLedger(now func() time.Time) *Ledger {
	l := &Ledger{now: now}
	l.clear()
	return l
}

func (l *Ledger) clear() {
	l.seq, l.count, l.order, l.dups, l.nextDup = 0, [providers]providerCount{}, OrderReport{}, nil, 0
	for i := range l.count {
		l.count[i].status = map[int]uint64{}
	}
	for i := range l.shards {
		l.shards[i] = shard{map[notify.Base]slot{}, map[notify.Base]*fan{}, map[pairKey]slot{}}
	}
	l.foreign, l.users = map[notify.ID]string{}, map[uint64]userOrder{}
}

// Reset forgets everything, in the file as well.
func (l *Ledger) Reset() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clear()
	if l.file != nil {
		return l.file.truncate()
	}
	return nil
}

// request counts one request, whatever its receivers.
func (l *Ledger) request(p Provider) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[p-1].Requests++
}

// record adds one receiver. It sets e.seq.
func (l *Ledger) record(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.seq = l.seq + 1
	l.apply(e)
	if l.file != nil {
		l.file.append(e)
	}
}

// parse returns an id's key. An id that is none of ours gets a place among the bases.
func parse(text string) (id notify.ID, foreign bool) {
	id, err := notify.ParseID(text)
	if err == nil {
		return id, false
	}
	h := xxhash.Sum64String(text)
	binary.LittleEndian.PutUint64(id.Base[:], h)
	binary.LittleEndian.PutUint64(id.Base[8:], mix(h, uint64(len(text))))
	id.Index, id.Fan = 0, false
	return id, true
}

func (l *Ledger) shardOf(b notify.Base) *shard { return &l.shards[b[15]&63] }

// apply counts e; the file's records come through here again after a restart. The
// lock is held.
func (l *Ledger) apply(e *entry) {
	l.seq = max(l.seq, e.seq)
	c := &l.count[e.provider-1]
	c.Receivers++
	c.status[e.status]++
	switch e.outcome {
	case Accepted:
		c.Accepted++
	case Ambiguous:
		c.Ambiguous++
	default:
		c.Rejected++
	}
	if e.id == "" {
		c.NoID++
		return
	}
	id, foreign := parse(e.id)
	if foreign && l.foreign[id] == "" {
		if len(l.foreign) >= foreignMax {
			c.Untracked++
			return
		}
		l.foreign[id] = e.id
	}
	s := l.shardOf(id.Base)
	f := s.fans[id.Base]
	if id.Fan && f == nil {
		f = &fan{BaseCount: BaseCount{Base: id.Base.String()}, pages: map[uint32]*[pageSize]slot{}}
		s.fans[id.Base] = f
	}
	h := s.hit(id, e)
	c.IDs += b2u(h.firstOfID)
	c.Deliveries += b2u(h.first)
	c.Duplicates += b2u(h.duplicate)
	if id.Fan {
		f.IDs += b2u(h.firstOfID)
		f.Deliveries += b2u(h.first)
		f.Duplicates += b2u(h.duplicate)
	}
	if h.duplicate {
		l.keepDuplicate(e, h.before)
	}
	if e.user != "" {
		l.checkOrder(e, h)
	}
}

// hit is what one more request meant for its pair.
type hit struct {
	firstTry  bool // the pair was never seen before
	first     bool // its first delivery
	firstOfID bool // the first of the id, over all addresses
	duplicate bool
	before    slot // as it was
}

// hit finds e's slot and counts it.
func (s *shard) hit(id notify.ID, e *entry) hit {
	first, k := s.get(id), pairKey{id, uint32(e.addr)}
	var h hit
	if first.attempts == 0 || first.addr == k.addr {
		h = first.take(e)
	} else {
		x := s.more[k]
		h = x.take(e)
		s.more[k] = x
	}
	h.firstOfID = h.first && !first.idCounted
	first.idCounted = first.idCounted || h.first
	s.put(id, first)
	return h
}

func (s *slot) take(e *entry) hit {
	h := hit{firstTry: s.attempts == 0, before: *s}
	if h.firstTry {
		s.addr, s.at = uint32(e.addr), e.at
	}
	s.attempts = max(s.attempts, s.attempts+1)
	if e.outcome.taken() {
		h.first = s.deliveries == 0
		h.duplicate = !h.first
		if h.first {
			s.at, s.attempt = e.at, attemptHash(e.attempt)
		}
		s.deliveries = max(s.deliveries, s.deliveries+1)
	}
	s.provider, s.status = e.provider, int16(e.status)
	return h
}

// keepDuplicate keeps the details of a duplicate. The lock is held.
func (l *Ledger) keepDuplicate(e *entry, before slot) {
	d := Duplicate{
		ID: e.id, Provider: e.provider, Address: hexAddr(uint32(e.addr)), Seq: e.seq,
		At: time.Unix(0, e.at), FirstAt: time.Unix(0, before.at), Deliveries: int(before.deliveries) + 1,
		SameAttempt: e.attempt != "" && before.attempt == attemptHash(e.attempt),
	}
	if len(l.dups) < keepDups {
		l.dups = append(l.dups, d)
		return
	}
	l.dups[l.nextDup] = d
	l.nextDup = (l.nextDup + 1) % keepDups
}

// checkOrder compares e with what the same user was sent at the same address. The
// lock is held.
func (l *Ledger) checkOrder(e *entry, h hit) {
	key := mix(xxhash.Sum64String(e.user), e.addr^uint64(e.provider.Channel())<<56)
	was := l.users[key]
	now := was
	if h.firstTry {
		now.tried = max(was.tried, e.userSeq)
	}
	if h.first {
		now.taken = max(was.taken, e.userSeq)
	}
	l.users[key] = now
	lateTry := h.firstTry && e.userSeq < was.tried
	late := h.first && e.userSeq < was.taken
	l.order.ReorderedAttempts += b2u(lateTry)
	l.order.Reordered += b2u(late)
	if (lateTry || late) && len(l.order.Examples) < keepReordered {
		x := Reordered{User: e.user, ID: e.id, Provider: e.provider, Seq: e.userSeq, After: was.taken, At: e.at, Attempt: lateTry}
		if lateTry {
			x.After = was.tried
		}
		l.order.Examples = append(l.order.Examples, x)
	}
}

// close flushes and closes the file.
func (l *Ledger) close() error {
	if l.file == nil {
		return nil
	}
	return l.file.close()
}

func attemptHash(s string) uint16 {
	if s == "" {
		return 0
	}
	return uint16(xxhash.Sum64String(s)) | 1
}

func addrHash(s string) uint64 { return xxhash.Sum64String(s) }

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
