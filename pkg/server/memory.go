package server

import (
	"context"
	"errors"
	"io"
	"math/bits"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Bodies are read whole into pooled buffers of a power of two: a fan-out of a
// megabyte is then read straight from the socket into memory that is already
// mapped and not zeroed (BenchmarkReadBody).
const (
	minBuffer = 1 << 10
	maxBuffer = 64 << 20
)

// buffer is pooled memory for a body; b has the size of its class.
type buffer struct{ b []byte }

// share is what one caller holds of a memory; guarded by its lock.
type share struct{ held int64 }

// memory bounds the bytes of bodies held at a time, shares them out between
// callers, and keeps their buffers.
//
// A caller's bodies may hold as much as they leave free. So one alone gets half,
// the next finds the other half and may take half of that, and so on; when what
// they held before is given back, n greedy ones hold 1/(n+1) each. A caller's
// only body needs room and nothing else.
type memory struct {
	size int64
	wait time.Duration // for memory to become free; 0: none

	mu      sync.Mutex
	held    int64
	waiting []*waiter // in the order they came

	buffers   [27 - 10]sync.Pool // of *buffer, by log2(size) - 10
	inflaters sync.Pool          // of *inflater
}

// waiter is a body that waits to hold want bytes instead of have.
type waiter struct {
	by         *share
	have, want int64
	ready      chan struct{} // closed when it holds them
}

func newMemory(bytes int64, wait time.Duration) *memory { return &memory{size: bytes, wait: wait} }

func classOf(n int64) int { return bits.Len64(uint64(max(n, minBuffer)-1)) - 10 }

func (m *memory) get(n int64) *buffer {
	class := classOf(n)
	if b, ok := m.buffers[class].Get().(*buffer); ok {
		return b
	}
	return &buffer{make([]byte, minBuffer<<class)}
}

func (m *memory) put(b *buffer) { m.buffers[classOf(int64(len(b.b)))].Put(b) }

// verdict is whether a body may hold more.
type verdict uint8

const (
	mayHold   verdict = iota
	noRoom            // there is not that much left
	shareUsed         // there is, but not for this caller
)

// may needs the lock.
func (m *memory) may(by *share, have, want int64) verdict {
	free := m.size - (m.held - have + want)
	switch {
	case free < 0:
		return noRoom
	case by != nil && by.held > have && by.held-have+want > free:
		return shareUsed
	}
	return mayHold
}

// move needs the lock.
func (m *memory) move(by *share, have, want int64) {
	m.held += want - have
	if by != nil {
		by.held += want - have
	}
}

// take lets a body of by hold want bytes instead of have, and waits for it if
// the memory is one to wait for. by is nil for bodies of nobody.
func (m *memory) take(ctx context.Context, by *share, have, want int64) error {
	m.mu.Lock()
	// Whoever waits for room goes before whoever comes later, so that small
	// bodies do not keep a large one out.
	now := m.may(by, have, want)
	if now == mayHold && slices.ContainsFunc(m.waiting, func(w *waiter) bool { return m.may(w.by, w.have, w.want) == noRoom }) {
		now = noRoom
	}
	if now == mayHold {
		m.move(by, have, want)
		m.mu.Unlock()
		return nil
	}
	if m.wait == 0 {
		m.mu.Unlock()
		return refusal(now)
	}
	w := &waiter{by, have, want, make(chan struct{})}
	m.waiting = append(m.waiting, w)
	m.mu.Unlock()

	timer := time.NewTimer(m.wait)
	defer timer.Stop()
	select {
	case <-w.ready:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.waiting, w)
	if i < 0 {
		return nil // it was just given
	}
	m.waiting = slices.Delete(m.waiting, i, i+1)
	now = m.may(by, have, want)
	m.grant() // those it stood before
	return refusal(max(now, noRoom))
}

// release gives back n bytes of by.
func (m *memory) release(by *share, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.move(by, n, 0)
	m.grant()
}

// grant gives memory to whom it fits now: past one that has its caller's share,
// not past one that waits for room. It needs the lock.
func (m *memory) grant() {
	for i := 0; i < len(m.waiting); {
		w := m.waiting[i]
		switch m.may(w.by, w.have, w.want) {
		case noRoom:
			return
		case shareUsed:
			i++
		case mayHold:
			m.move(w.by, w.have, w.want)
			m.waiting = slices.Delete(m.waiting, i, i+1)
			close(w.ready)
		}
	}
}

func refusal(why verdict) error {
	if why == shareUsed {
		return overShare("caller_memory", "the bodies of this caller that are being read hold its share of the memory; send fewer at a time")
	}
	return &notify.Error{Kind: notify.KindUnavailable, Code: "busy", Msg: "too many large requests are being read", RetryAfter: time.Second}
}

// overShare refuses what a caller has too many of at a time; others have room.
func overShare(code, msg string) error {
	return &notify.Error{Kind: notify.KindThrottled, Code: code, Msg: msg, RetryAfter: time.Second}
}

// pace reads a large body and cuts it off when it comes slower than asked for:
// within any window that many bytes must come, or the end. A body holds memory
// and one of the requests under way while it comes.
type pace struct {
	r      io.Reader
	conn   *http.ResponseController
	window time.Duration
	least  int64     // bytes of a window
	end    time.Time // of the window
	until  time.Time // when all of it must be there

	n, next int64 // bytes so far, and those with which a new window begins
	slow    error // what a body is told that was cut off within a window
}

// newPace makes the pace of x's body.
func newPace(x *exchange, rate int64, window, all time.Duration) *pace {
	p := &pace{
		conn: http.NewResponseController(x.w), window: window,
		least: max(1, int64(float64(rate)*window.Seconds())), until: time.Now().Add(all),
		slow: &notify.Error{
			Kind: notify.KindInvalid, Code: api.CodeBodyTimeout,
			Msg: "the body came slower than " + byteSize(rate) + " a second over " + window.String(),
		},
	}
	_ = p.conn.SetWriteDeadline(p.until.Add(x.srv.cfg.WriteTimeout)) // a recorder in a test has none
	p.renew()
	return p
}

// renew begins a window.
func (p *pace) renew() {
	p.next = p.n + p.least
	p.ends(time.Now().Add(p.window))
}

func (p *pace) ends(end time.Time) {
	if end.After(p.until) {
		end = p.until
	}
	p.end = end
	_ = p.conn.SetReadDeadline(end)
}

// pause makes up for a time in which nobody read.
func (p *pace) pause(d time.Duration) {
	if p != nil && d > time.Millisecond {
		p.ends(p.end.Add(d))
	}
}

func (p *pace) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if p.n += int64(n); p.n >= p.next && err == nil { // behind the end the deadline is not ours
		p.renew()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(p.until) {
		err = p.slow
	}
	return n, err
}
