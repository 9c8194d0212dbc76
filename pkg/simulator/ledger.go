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

// Outcome says what happened to one receiver of a request.
type Outcome uint8

// The outcomes of a receiver:
//
//	Rejected   the provider did not act on the request
//	Accepted   the provider acted on the request, and the caller knows it
//	Ambiguous  the provider acted on the request, but the caller cannot know it: the connection was
//	           reset, there was no answer, or a gateway answered with an error
//
// Accepted and ambiguous receivers are "taken": their message counts as delivered.
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

// ledgerEntry is one receiver of one request, as the ledger counts it.
type ledgerEntry struct {
	seq      uint64 // number in the ledger, from 1
	at       int64  // time at which the body had been read, Unix nanoseconds
	provider Provider
	outcome  Outcome
	status   int    // HTTP status of the answer; 0: no answer
	id       string // notification id; empty: the request has no id
	attempt  string // id of the attempt at the provider; only for APNs
	addr     uint64 // hash of the address
	user     string // empty: the payload names no user
	userSeq  uint64 // sequence number of the message among the messages of the user
}

// Ledger counts every receiver of every request. Torture runs and load runs use it as their proof,
// so its counts must be exact. It counts the distinct (id, address) pairs that were taken, and a
// duplicate for each further time that a pair was taken. A user with two devices makes two pairs
// with one id. Addresses are compared by 32 bits of a hash.
//
// The memory of a Ledger is bounded. The rest of its data is in unlinked files. These files need 11
// bytes for a delivered receiver of a fan-out, 38 bytes for a delivered single notification, 28
// bytes for a row of arrivals, and 24 bytes for the order of a user at an address. A call that
// records a receiver sometimes also writes a file. Other calls wait for that write only if the
// memory is full again before the write ends.
//
// A Ledger is safe for concurrent use.
type Ledger struct {
	dir    string
	memory int
	file   *ledgerFile // nil if Config.LedgerFile is empty

	mu               sync.Mutex // guards the fields below
	writeEnded       sync.Cond  // signalled when a write or a merge ends
	writing          bool       // true: a call writes pairs and arrivals at the moment, without mu
	merging          bool       // true: a call merges orders at the moment, without mu
	seq              uint64     // number of the last entry
	providerCounts   [receiverProviders]providerCount
	pairs            *pairStore
	arrivals         *arrivalLog
	lastFanoutText   string // text of the last fan-out id, up to its index
	lastFanoutBase   notify.Base
	foreign          map[notify.ID]string // texts of ids that are not notification ids, by the key that parseID returns
	orders           *userOrders
	examples         []Reordered // the first keepReordered reordered messages
	recentDuplicates []Duplicate // a ring with the last keepDups duplicates
	nextDuplicate    int         // place of the next duplicate, when the ring is full
}

const (
	keepDups      = 1000    // number of duplicates whose details are kept
	keepReordered = 100     // number of reordered messages that are kept as examples
	foreignMax    = 1 << 20 // largest number of ids that are counted although they are not notification ids
)

type providerCount struct {
	Totals
	status map[int]uint64
}

// NewLedger returns an empty Ledger. The parameter memory is the approximate number of bytes of
// memory that the Ledger uses. The Ledger stores the rest in files in dir, or in the system's
// folder for temporary files if dir is empty. The memory has four equal parts: pairs that change,
// pairs that are being written, the order of users, and the indexes of pairs on disk. The indexes
// grow by 2 bytes for each single notification and by 0.1 bytes for each receiver of a fan-out.
func NewLedger(dir string, memory int) *Ledger {
	l := &Ledger{dir: dir, memory: memory}
	l.writeEnded.L = &l.mu
	l.clear()
	return l
}

func (l *Ledger) clear() {
	l.seq, l.providerCounts, l.examples, l.recentDuplicates, l.nextDuplicate = 0, [receiverProviders]providerCount{}, nil, nil, 0
	for i := range l.providerCounts {
		l.providerCounts[i].status = map[int]uint64{}
	}
	// Replace the data but do not close its files, because readers may still use them. The garbage
	// collector closes them later.
	l.pairs, l.arrivals, l.orders = newPairs(l.dir, l.memory/4), &arrivalLog{dir: l.dir}, newUserOrders(l.dir, l.memory/4)
	l.foreign = map[notify.ID]string{}
}

// Reset removes all counts, and empties the ledger file.
func (l *Ledger) Reset() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clear()
	if l.file != nil {
		return l.file.truncate()
	}
	return nil
}

// countRequest adds one request to the counts of a provider. It does not count the receivers.
func (l *Ledger) countRequest(p Provider) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.providerCounts[p-1].Requests++
}

// Receiver is one receiver of one request, as the provider sees it.
type Receiver struct {
	ID       string // notification id
	Provider Provider
	Outcome  Outcome
	Address  string
	At       time.Time
	User     string // empty: not known
	Seq      uint64 // sequence number among the messages of the user
}

// Count counts a receiver. It is for programs that have a ledger without simulated providers.
func (l *Ledger) Count(r *Receiver) {
	l.recordEntry(&ledgerEntry{
		at: r.At.UnixNano(), provider: r.Provider, outcome: r.Outcome, status: 200,
		id: r.ID, addr: addrHash(r.Address), user: r.User, userSeq: r.Seq,
	})
}

// recordEntry counts one receiver. It sets e.seq.
func (l *Ledger) recordEntry(e *ledgerEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.seq = l.seq + 1
	l.countEntry(e)
	if l.file != nil {
		l.file.appendEntry(e)
	}
	l.spillIfFull()
}

// spillIfFull writes pairs and arrivals to disk if memory is full. It also merges the order events
// if a merge is due. It releases the lock during a write or a merge. If memory is full and another
// call is writing, it first waits for that write. The caller holds the lock.
func (l *Ledger) spillIfFull() {
	for l.pairs.isFull(len(l.arrivals.growing)) {
		if l.writing {
			l.writeEnded.Wait()
			continue
		}
		l.writing = true
		p, a := l.pairs, l.arrivals // a Reset may replace l.pairs and l.arrivals during the write
		t := p.freeze()
		a.freeze()
		l.mu.Unlock()
		r, err := writeRun(p.dir, t, &p.runKeys)
		failed := a.write()
		l.mu.Lock()
		if failed == nil {
			a.frozenWritten()
		}
		p.frozenWritten(r, errors.Join(err, failed))
		l.writing = false
		l.writeEnded.Broadcast()
	}
	if l.orders.mergeDue() {
		l.mergeOrders(len(l.orders.waiting) >= 2*l.orders.mergeAt)
	}
}

// mergeOrders compares the waiting order events with the order of their users. It releases the lock
// during the merge. If another call is merging, mergeOrders returns at once. But if the parameter
// wait is true, it waits for that call and then merges too. The caller holds the lock.
func (l *Ledger) mergeOrders(wait bool) {
	for l.merging {
		if !wait {
			return
		}
		l.writeEnded.Wait()
	}
	l.merging = true
	o := l.orders
	users := o.freeze()
	l.mu.Unlock()
	m, err := o.merge(users)
	l.mu.Lock()
	o.mergeEnded(m, err)
	l.merging = false
	l.writeEnded.Broadcast()
}

// Settle merges all waiting order events (see mergeOrders). After that, Order reports on all
// receivers that were recorded before the call.
func (l *Ledger) Settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.orders.err == nil && l.orders.pending() > 0 {
		l.mergeOrders(true)
	}
}

// parseID returns the key of an id. If the text is not a notification id, the result foreign is
// true and the key is a hash of the text.
func parseID(text string) (id notify.ID, foreign bool) {
	id, err := notify.ParseID(text)
	if err == nil {
		return id, false
	}
	h := xxhash.Sum64String(text)
	binary.LittleEndian.PutUint64(id.Base[:], h)
	binary.LittleEndian.PutUint64(id.Base[8:], mixHash(h, uint64(len(text))))
	id.Index, id.FanOut = 0, false
	return id, true
}

// parseNear returns the same as parseID. It is faster if most ids belong to the same fan-out as the
// id before, because it then parses only the index.
func (l *Ledger) parseNear(text string) (id notify.ID, foreign bool) {
	if n := len(l.lastFanoutText); n > 0 && len(text) > n && text[:n] == l.lastFanoutText && text[n] != '0' {
		if index, err := strconv.ParseUint(text[n:], 10, 31); err == nil {
			return notify.ID{Base: l.lastFanoutBase, Index: uint32(index), FanOut: true}, false
		}
	}
	id, foreign = parseID(text)
	if at := strings.IndexByte(text, '-'); !foreign && id.FanOut && at > 0 {
		l.lastFanoutText, l.lastFanoutBase = text[:at+1], id.Base
	}
	return id, foreign
}

// countEntry counts e, which is new or was read from the ledger file at a restart. The caller holds
// the lock.
func (l *Ledger) countEntry(e *ledgerEntry) {
	l.seq = max(l.seq, e.seq)
	c := &l.providerCounts[e.provider-1]
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
	id, foreign := l.parseNear(e.id)
	if foreign && l.foreign[id] == "" {
		if len(l.foreign) >= foreignMax {
			c.Untracked++
			return
		}
		l.foreign[id] = e.id
	}
	h := l.pairs.countHit(id, e)
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

// pairHit says how a request counts for its (id, address) pair.
type pairHit struct {
	firstTry  bool     // true: the first request with this pair
	first     bool     // true: the first delivery of the pair
	firstOfID bool     // true: the first delivery of the id, at any address
	duplicate bool     // true: a delivery of the pair after its first delivery
	before    pairSlot // the slot before this request
}

func (s *pairSlot) countTake(e *ledgerEntry) pairHit {
	h := pairHit{firstTry: s.attempts == 0, before: *s}
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

// keepDuplicate keeps the details of a duplicate. The caller holds the lock.
func (l *Ledger) keepDuplicate(e *ledgerEntry, before pairSlot) {
	d := Duplicate{
		ID: e.id, Provider: e.provider, Address: hexAddr(uint32(e.addr)), Seq: e.seq,
		At: time.Unix(0, e.at), FirstAt: time.Unix(0, before.at), Deliveries: int(before.deliveries) + 1,
		SameAttempt: e.attempt != "" && before.attempt == attemptHash(e.attempt),
	}
	if len(l.recentDuplicates) < keepDups {
		l.recentDuplicates = append(l.recentDuplicates, d)
		return
	}
	l.recentDuplicates[l.nextDuplicate] = d
	l.nextDuplicate = (l.nextDuplicate + 1) % keepDups
}

// checkOrder compares e with the earlier messages to the same user at the same address. The caller
// holds the lock.
func (l *Ledger) checkOrder(e *ledgerEntry, h pairHit) {
	if !h.firstTry && !h.first {
		return
	}
	key := mixHash(xxhash.Sum64String(e.user), e.addr^uint64(e.provider.Channel())<<56)
	was, lateTry, late := l.orders.addEvent(&orderEvent{key: key, seq: e.userSeq, firstTry: h.firstTry, firstDelivery: h.first})
	if (lateTry || late) && len(l.examples) < keepReordered {
		x := Reordered{User: e.user, ID: e.id, Provider: e.provider, Seq: e.userSeq, After: was.highestTaken, At: e.at, Attempt: lateTry}
		if lateTry {
			x.After = was.highestTried
		}
		l.examples = append(l.examples, x)
	}
}

// close flushes and closes the ledger file.
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
