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

// mailbox brings single mails of one content together, so that one call to the
// provider carries up to a window of them. Codes and alerts are not held; nor
// is a content nobody else has been seen to send.
type mailbox struct {
	p *partition

	mu    sync.Mutex
	bags  map[contentKey]*bag
	seen  map[contentKey]time.Time // contents met in the last BatchAge
	swept time.Time
	rush  int // codes that wait for a turn behind mails: nothing is held
}

// bag holds mails of one content until it is full or BatchAge old.
type bag struct {
	jobs []*job
	full chan struct{}
}

func newMailbox(p *partition) *mailbox {
	return &mailbox{p: p, bags: map[contentKey]*bag{}, seen: map[contentKey]time.Time{}}
}

// takes reports whether a mail may meet others of its content: templates may
// at once, inline content once it was seen twice.
func (m *mailbox) takes(j *job) bool {
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
	if m.rush > 0 {
		return false
	}
	return again || j.env.Content.Template != ""
}

// add puts a mail into its bag; the first one waits and takes the whole bag
// through the provider, the others leave their goroutine.
func (m *mailbox) add(j *job) {
	cfg := &m.p.w.cfg
	h := contentHash(&j.env)
	m.mu.Lock()
	b := m.bags[h]
	first := b == nil
	if first {
		b = &bag{full: make(chan struct{})}
		m.bags[h] = b
	}
	b.jobs = append(b.jobs, j)
	if len(b.jobs) == cfg.Window || first && m.rush > 0 {
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
	case <-m.p.soft.Done():
		return
	}
	m.send(b.jobs)
}

// send takes the mails of a bag whose turn has come through the provider in one
// call, then the others one by one: a user's second mail waits for the first,
// and holds no budget meanwhile.
func (m *mailbox) send(jobs []*job) {
	var now, later []*job
	for _, j := range jobs {
		if j.turn == nil || j.turn.come() {
			now = append(now, j)
		} else {
			later = append(later, j)
		}
	}
	if len(now) > 0 && !m.sendNow(now) {
		return
	}
	// In the order of the log: else two bags could wait for each other.
	slices.SortFunc(later, func(a, b *job) int { return cmp.Compare(a.turn.n, b.turn.n) })
	for _, j := range later {
		if !j.myTurn() || !j.window(0) {
			return
		}
		j.handedOut()
	}
}

// sendNow claims mails and calls the provider once for all, or once for as many as
// it admits. False: the partition is going.
func (m *mailbox) sendNow(jobs []*job) bool {
	p := m.p
	if p.w.claimLast {
		for len(jobs) > 0 {
			a, n, ok := p.admit(&jobs[0].env, len(jobs))
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
	held, err := p.budget.acquire(p.soft, jobs[0].env.Category, len(jobs))
	if err != nil {
		return false
	}
	defer p.budget.release(held)
	expires := jobs[0].env.Expires // of all: it is part of their content's key
	if !p.w.cfg.Gate.wait(p.soft, expires) || !p.w.cfg.Health.waitReady(p.soft, &p.w.cfg.Routes, expires) {
		return false
	}
	return m.claimAndCall(jobs, nil)
}

func (m *mailbox) claimAndCall(jobs []*job, permit notify.Permit) bool {
	solo := m.p.w.cfg.Solo
	if solo.enter(m.p.soft) != nil {
		return false
	}
	parts := make([]*window, len(jobs))
	errs := make(chan error, len(jobs))
	for i, j := range jobs {
		parts[i] = &window{job: j, lo: 0, hi: 1, rd: j.readerAt(0)}
		j.mu.Lock()
		j.windows, j.claimed = 1, true
		j.mu.Unlock()
		go func() { errs <- j.claim(parts[i]) }()
	}
	var err error
	for range jobs {
		err = cmp.Or(<-errs, err)
	}
	have := callPass
	if err != nil || !m.p.w.claimLast { // the call waits for capacity
		have = noPass
		solo.leave()
	}
	if err != nil {
		return false
	}
	m.p.w.runWindow(parts, permit, have)
	return true
}

// hurry is told of a code or alert: mails that its turn waits for are not held.
func (m *mailbox) hurry(j *job) {
	if j.turn == nil || j.turn.come() {
		return
	}
	m.mu.Lock()
	m.rush++
	for k, b := range m.bags {
		delete(m.bags, k)
		close(b.full)
	}
	m.mu.Unlock()
	m.p.wg.Go(func() {
		select {
		case <-j.turn.ready:
		case <-m.p.soft.Done():
		}
		m.mu.Lock()
		m.rush--
		m.mu.Unlock()
	})
}

// contentKey is a cryptographic hash: whoever finds two contents of one key
// could have his own sent to another's receivers.
type contentKey [sha256.Size]byte

func contentHash(e *notify.Envelope) contentKey {
	b := notify.AppendContent(nil, &e.Content)
	b = append(b, byte(e.Category))
	b = binary.BigEndian.AppendUint64(b, uint64(e.Expires))
	b = append(b, e.Caller...)
	return sha256.Sum256(b)
}
