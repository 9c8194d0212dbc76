package provider

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// run keeps the connections open until ctx ends, then waits for the requests in
// flight and closes everything.
func (p *connPool) run(ctx context.Context) {
	var wg sync.WaitGroup
	for range p.size {
		wg.Go(func() { p.slot(ctx) })
	}
	<-ctx.Done()
	p.mu.Lock()
	p.stopped = true
	p.failWaiters()
	busy := p.inflight > 0
	p.mu.Unlock()
	if busy {
		t := time.NewTimer(p.drain)
		select {
		case <-p.idle:
		case <-t.C:
		}
		t.Stop()
	}
	wg.Wait()
	p.mu.Lock()
	open := append([]*pooledConn(nil), p.conns...)
	for _, c := range open {
		p.remove(c)
	}
	p.mu.Unlock()
	for _, c := range open {
		c.cc.Close()
	}
}

// slot keeps one connection open.
func (p *connPool) slot(ctx context.Context) {
	fails := 0
	for {
		if fails > 0 {
			d := min(p.backoff[0]<<min(fails-1, 10), p.backoff[1])
			if !sleep(ctx, d/2+rand.N(d/2+1)) {
				return
			}
		}
		if !p.turn(ctx) {
			return
		}
		cc, err := p.dial(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			fails++
			p.lost(err)
			continue
		}
		c := &pooledConn{cc: cc, gone: make(chan struct{})}
		p.install(c)
		select {
		case <-ctx.Done():
			return
		case <-c.gone:
		}
		p.mu.Lock()
		if c.proven {
			fails = 0
		} else {
			fails++
		}
		last := c.inflight == 0
		p.mu.Unlock()
		if last {
			cc.Close() // twice is harmless
		}
	}
}

func (p *connPool) install(c *pooledConn) {
	p.mu.Lock()
	p.down = nil
	c.limit = 1
	p.conns = append(p.conns, c)
	p.mu.Unlock()
	c.cc.SetStateHook(func(*http.ClientConn) { p.changed(c) })
	p.changed(c)
}

// lost notes that a dial failed. With no connection left, nobody waits.
func (p *connPool) lost(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) > 0 {
		return
	}
	if p.down == nil {
		p.log.Warn("provider cannot be reached", "err", err)
	}
	p.down = err
	p.failWaiters()
}

// turn waits until this slot may dial. Many connections opened at once look
// like an attack.
func (p *connPool) turn(ctx context.Context) bool {
	p.mu.Lock()
	now := time.Now()
	at := p.nextDial
	if at.Before(now) {
		at = now
	}
	p.nextDial = at.Add(p.stagger)
	p.mu.Unlock()
	return sleep(ctx, at.Sub(now))
}

// sleep waits and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Connections is the state of a client's connections.
type Connections struct {
	Open     int // connections that take requests
	Streams  int // how many requests they take together now
	InFlight int
	Waiting  int // items waiting for a stream
}

func (p *connPool) state() Connections {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Connections{Open: len(p.conns), InFlight: p.inflight, Waiting: p.waiters.Len()}
	for _, c := range p.conns {
		s.Streams += c.gate()
	}
	return s
}
