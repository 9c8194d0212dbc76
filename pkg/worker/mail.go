package worker

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// mailbox collects single mails with the same content, so that one call to the provider sends up to
// a window of mails. It does not delay otp and alert mails. It also does not delay a mail with
// inline content if no mail with the same content came shortly before.
type mailbox struct {
	p *partition

	mu    sync.Mutex // guards the fields below and the bags
	bags  map[contentKey]*contentBag
	seen  map[contentKey]time.Time // when each content was last seen; entries older than BatchAge are removed
	swept time.Time                // when old entries of seen were last removed
	// urgentWaiting is the number of otp and alert mails that wait for earlier mails. While it is
	// above 0, all mails are sent at once.
	urgentWaiting int
}

// contentBag collects mails with the same content until the bag is full or BatchAge old.
type contentBag struct {
	jobs []*job
	full chan struct{} // closed when the bag must be sent at once
}

func newMailbox(p *partition) *mailbox {
	return &mailbox{p: p, bags: map[contentKey]*contentBag{}, seen: map[contentKey]time.Time{}}
}

// mayHold returns true if a mail should wait for other mails with the same content. A mail with a
// template always waits. A mail with inline content waits if a mail with this content came before
// it. No mail waits while an urgent mail needs its turn, and no urgent mail waits.
func (m *mailbox) mayHold(j *job) bool {
	if j.env.Category.Critical() {
		return false
	}
	h := contentHash(&j.env)
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.swept) > m.p.w.cfg.BatchAge {
		for k, t := range m.seen {
			if now.Sub(t) > m.p.w.cfg.BatchAge {
				delete(m.seen, k)
			}
		}
		m.swept = now
	}
	_, again := m.seen[h]
	m.seen[h] = now
	if m.urgentWaiting > 0 {
		return false
	}
	return again || j.env.Content.Template != ""
}

// add puts a mail into the bag for its content. The goroutine that puts the first mail into a bag
// waits and then sends the whole bag. The goroutines of the other mails end.
func (m *mailbox) add(j *job) {
	cfg := &m.p.w.cfg
	h := contentHash(&j.env)
	m.mu.Lock()
	b := m.bags[h]
	first := b == nil
	if first {
		b = &contentBag{full: make(chan struct{})}
		m.bags[h] = b
	}
	b.jobs = append(b.jobs, j)
	if len(b.jobs) == cfg.Window || first && m.urgentWaiting > 0 {
		delete(m.bags, h)
		close(b.full)
	}
	m.mu.Unlock()
	if !first {
		return
	}
	t := time.NewTimer(cfg.BatchAge)
	defer t.Stop()
	select {
	case <-t.C:
		m.mu.Lock()
		if m.bags[h] == b {
			delete(m.bags, h)
		}
		m.mu.Unlock()
	case <-b.full:
	case <-m.p.untilDrain.Done():
		return
	}
	m.sendBag(b.jobs)
}

// sendBag first sends, in one call, all mails of the bag that may be sent now. Then it sends the
// others one by one; for example, a second mail to the same user must wait for the first. A mail
// uses no budget while it waits for its turn.
func (m *mailbox) sendBag(jobs []*job) {
	var now, later []*job
	for _, j := range jobs {
		if j.turn == nil || j.turn.hasCome() {
			now = append(now, j)
		} else {
			later = append(later, j)
		}
	}
	if len(now) > 0 && !m.sendNow(now) {
		return
	}
	// Send these mails in the order of the log. Otherwise two bags could wait for each other.
	slices.SortFunc(later, func(a, b *job) int { return cmp.Compare(a.turn.number, b.turn.number) })
	for _, j := range later {
		if !j.waitTurn() || !j.runPosition(0) {
			return
		}
		j.allHandedOut()
	}
}

// sendNow claims mails and normally calls the provider once for all of the mails. If the provider is
// Rated, sendNow instead makes one call for each permit. It returns false if the partition is being
// drained.
func (m *mailbox) sendNow(jobs []*job) bool {
	p := m.p
	if p.w.claimLast {
		for len(jobs) > 0 {
			a, n, ok := p.admitReceivers(&jobs[0].env, len(jobs))
			if !ok {
				return false
			}
			ok = m.claimAndCall(jobs[:n], a.permit)
			a.release()
			if jobs = jobs[n:]; !ok {
				return false
			}
		}
		return true
	}
	held, err := p.budget.acquire(p.untilDrain, jobs[0].env.Category, len(jobs))
	if err != nil {
		return false
	}
	defer p.budget.release(held)
	expires := jobs[0].env.Expires // the same for all, because the key of a bag contains it
	if !p.w.cfg.Gate.wait(p.untilDrain, expires) || !p.w.cfg.Health.waitReady(p.untilDrain, &p.w.cfg.Routes, expires) {
		return false
	}
	return m.claimAndCall(jobs, nil)
}

// claimAndCall claims single mails, each in its own row, and calls the provider once for all of the
// mails. It returns false if the partition is gone or being drained.
func (m *mailbox) claimAndCall(jobs []*job, permit notify.Permit) bool {
	solo := m.p.w.cfg.Solo
	if solo.enter(m.p.untilDrain) != nil {
		return false
	}
	parts := make([]*window, len(jobs))
	errs := make(chan error, len(jobs))
	for i, j := range jobs {
		parts[i] = &window{job: j, lo: 0, hi: 1, rd: j.readerAt(0)}
		j.mu.Lock()
		j.windows, j.allMade = 1, true
		j.mu.Unlock()
		go func() { errs <- j.claim(parts[i]) }()
	}
	var err error
	for range jobs {
		err = cmp.Or(<-errs, err)
	}
	pass := callPass
	if err != nil || !m.p.w.claimLast { // the call waits for capacity, which must not happen inside the Solo
		pass = noPass
		solo.leave()
	}
	if err != nil {
		return false
	}
	m.p.w.runWindow(parts, permit, pass)
	return true
}

// releaseHeld sends all bags at once if the otp or alert mail j must wait for earlier mails: these
// may be in the bags.
func (m *mailbox) releaseHeld(j *job) {
	if j.turn == nil || j.turn.hasCome() {
		return
	}
	m.mu.Lock()
	m.urgentWaiting++
	for k, b := range m.bags {
		delete(m.bags, k)
		close(b.full)
	}
	m.mu.Unlock()
	m.p.wg.Go(func() {
		select {
		case <-j.turn.ready:
		case <-m.p.untilDrain.Done():
		}
		m.mu.Lock()
		m.urgentWaiting--
		m.mu.Unlock()
	})
}

// contentKey is a cryptographic hash. If an attacker could find two contents with the same key, the
// content of one caller could be sent to receivers of another caller.
type contentKey [sha256.Size]byte

func contentHash(e *notify.Envelope) contentKey {
	b := notify.AppendContent(nil, &e.Content)
	b = append(b, byte(e.Category))
	b = binary.BigEndian.AppendUint64(b, uint64(e.Expires))
	b = append(b, e.Caller...)
	return sha256.Sum256(b)
}
