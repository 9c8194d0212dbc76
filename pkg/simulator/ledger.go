package simulator

import (
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
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
// Its memory is bounded. What there is no room for is in files without a name, below
// 64 bytes a receiver: 11 of a fan-out, 34 of a single, and 28 of a row of arrivals. Who
// records pays for the writing now and then; the others go on meanwhile.
//
// It is safe for concurrent use.
type Ledger struct {
	dir    string
	memory int
	file   *ledgerFile // nil without Config.LedgerFile

	mu       sync.Mutex // guards what follows
	roomier  sync.Cond  // a write has ended
	writing  bool       // pairs and arrivals are being written
	merging  bool       // orders are being merged
	seq      uint64
	count    [providers]providerCount
	pairs    *pairs
	arrivals *arrivalLog
	nearText string // of the last id of a fan-out, up to its index
	nearBase notify.Base
	foreign  map[notify.ID]string // texts of the ids of another form
	orders   *userOrders
	examples []Reordered // the first ones
	dups     []Duplicate // a ring of the last keepDups
	nextDup  int         // where the next one goes once the ring is full
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

// NewLedger returns an empty one, which takes up to memory bytes, and keeps the rest
// in files in dir; empty: the system's folder for temporary files. A quarter of memory
// is for pairs that change, one for those being written, one for the order of users, and
// one for what is in memory of the pairs on disk. This last one grows by 2 bytes a single
// and 0.1 a receiver of a fan-out.
func NewLedger(dir string, memory int) *Ledger {
	l := &Ledger{dir: dir, memory: memory}
	l.roomier.L = &l.mu
	l.clear()
	return l
}

func (l *Ledger) clear() {
	l.seq, l.count, l.examples, l.dups, l.nextDup = 0, [providers]providerCount{}, nil, nil, 0
	for i := range l.count {
		l.count[i].status = map[int]uint64{}
	}
	// The files of the ones before are closed when their last reader has let go of them.
	l.pairs, l.arrivals, l.orders = newPairs(l.dir, l.memory/4), &arrivalLog{dir: l.dir}, newUserOrders(l.dir, l.memory/4)
	l.foreign = map[notify.ID]string{}
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

// Receiver is one receiver of one request, as a provider saw it.
type Receiver struct {
	ID       string // of the notification
	Provider Provider
	Outcome  Outcome
	Address  string
	At       time.Time
	User     string // empty: not known
	Seq      uint64 // of the user's messages
}

// Take adds a receiver, for programs that have a ledger without providers.
func (l *Ledger) Take(r *Receiver) {
	l.record(&entry{
		at: r.At.UnixNano(), provider: r.Provider, outcome: r.Outcome, status: 200,
		id: r.ID, addr: addrHash(r.Address), user: r.User, userSeq: r.Seq,
	})
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
	l.makeRoom()
}

// makeRoom writes to disk what there is no room for in memory, with the lock released.
// It waits only if memory is full while another call writes. The lock is held.
func (l *Ledger) makeRoom() {
	for l.pairs.full(len(l.arrivals.tail)) {
		if l.writing {
			l.roomier.Wait()
			continue
		}
		l.writing = true
		p, a := l.pairs, l.arrivals // a Reset may put others in their place
		t := p.freeze()
		a.freeze()
		l.mu.Unlock()
		r, err := writeRun(p.dir, t, &p.keys)
		failed := a.write()
		l.mu.Lock()
		if failed == nil {
			a.written()
		}
		p.written(r, errors.Join(err, failed))
		l.writing = false
		l.roomier.Broadcast()
	}
	if l.orders.full() {
		l.mergeOrders(len(l.orders.waiting) >= 2*l.orders.batch)
	}
}

// mergeOrders compares what waits, with the lock released. While another call does, it
// waits if it is told to, and returns otherwise. The lock is held.
func (l *Ledger) mergeOrders(wait bool) {
	for l.merging {
		if !wait {
			return
		}
		l.roomier.Wait()
	}
	l.merging = true
	o := l.orders
	users := o.freeze()
	l.mu.Unlock()
	m, err := o.merge(users)
	l.mu.Lock()
	o.took(m, err)
	l.merging = false
	l.roomier.Broadcast()
}

// Settle compares the order of users whose events wait: from then on the counts of
// what came before are exact, with any number of users.
func (l *Ledger) Settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.orders.err == nil && l.orders.pending() > 0 {
		l.mergeOrders(true)
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

// near is parse for ids of which the next one is mostly of the same fan-out: the base is
// read once. The lock is held.
func (l *Ledger) near(text string) (id notify.ID, foreign bool) {
	if n := len(l.nearText); n > 0 && len(text) > n && text[:n] == l.nearText && text[n] != '0' {
		if index, err := strconv.ParseUint(text[n:], 10, 31); err == nil {
			return notify.ID{Base: l.nearBase, Index: uint32(index), Fan: true}, false
		}
	}
	id, foreign = parse(text)
	if at := strings.IndexByte(text, '-'); !foreign && id.Fan && at > 0 {
		l.nearText, l.nearBase = text[:at+1], id.Base
	}
	return id, foreign
}

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
	id, foreign := l.near(e.id)
	if foreign && l.foreign[id] == "" {
		if len(l.foreign) >= foreignMax {
			c.Untracked++
			return
		}
		l.foreign[id] = e.id
	}
	h := l.pairs.hit(id, e)
	if h.firstOfID {
		l.arrivals.add(id.Base, e.at)
	}
	c.IDs += b2u(h.firstOfID)
	c.Deliveries += b2u(h.first)
	c.Duplicates += b2u(h.duplicate)
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
	if !h.firstTry && !h.first {
		return
	}
	key := mix(xxhash.Sum64String(e.user), e.addr^uint64(e.provider.Channel())<<56)
	was, lateTry, late := l.orders.add(&orderEvent{key: key, seq: e.userSeq, firstTry: h.firstTry, first: h.first})
	if (lateTry || late) && len(l.examples) < keepReordered {
		x := Reordered{User: e.user, ID: e.id, Provider: e.provider, Seq: e.userSeq, After: was.taken, At: e.at, Attempt: lateTry}
		if lateTry {
			x.After = was.tried
		}
		l.examples = append(l.examples, x)
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
