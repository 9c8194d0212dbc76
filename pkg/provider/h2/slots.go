package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Dialer returns a function for Config.Dial. The function connects to the given address, which has
// the form host:port. With a TLS configuration the server must agree to "h2" by ALPN. Without a TLS
// configuration the server must accept HTTP/2 without negotiation ("prior knowledge"). The host
// name is resolved again for every connection.
func Dialer(address string, t *tls.Config) func(ctx context.Context) (net.Conn, error) {
	d := &net.Dialer{KeepAlive: 30 * time.Second}
	if t == nil {
		return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
	}
	t = t.Clone()
	t.NextProtos = []string{"h2"}
	// Use large TLS records from the start. Small first records would help only a receiver that
	// uses the first bytes before the rest arrives.
	t.DynamicRecordSizingDisabled = true
	if t.ServerName == "" {
		t.ServerName, _, _ = net.SplitHostPort(address)
	}
	return func(ctx context.Context) (net.Conn, error) {
		nc, err := (&tls.Dialer{NetDialer: d, Config: t}).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		if p := nc.(*tls.Conn).ConnectionState().NegotiatedProtocol; p != "h2" {
			return nil, errors.Join(fmt.Errorf("h2: the server does not speak HTTP/2 (ALPN %q)", p), nc.Close())
		}
		return nc, nil
	}
}

// Run keeps the connections open until ctx ends. Then it ends queued requests as NoConnection,
// waits at most Config.Timeout for requests on connections, and closes all connections.
func (p *Pool) Run(ctx context.Context) error {
	var slots, conns sync.WaitGroup
	for range p.cfg.Size {
		slots.Go(func() { p.keepConnected(ctx, &conns) })
	}
	<-ctx.Done()
	p.mu.Lock()
	p.stopped = true
	p.failQueued(&Down{Err: context.Canceled})
	slots.Wait() // no connection is added after this
	t := time.NewTimer(p.cfg.Timeout)
	defer t.Stop()
	for wait := true; wait && p.inFlight.Load() > 0; {
		select {
		case <-p.idleCh:
		case <-t.C:
			wait = false
		}
	}
	p.mu.Lock()
	all := make([]*conn, 0, len(p.openConns))
	for c := range p.openConns {
		all = append(all, c)
	}
	p.mu.Unlock()
	for _, c := range all {
		c.close(net.ErrClosed, 0)
	}
	conns.Wait()
	return nil
}

// keepConnected keeps one connection open until ctx ends.
func (p *Pool) keepConnected(ctx context.Context, conns *sync.WaitGroup) {
	fails := 0
	for {
		if fails > 0 {
			d := min(p.cfg.BackoffMin<<min(fails-1, 10), p.cfg.BackoffMax)
			if !sleep(ctx, d/2+rand.N(d/2+1)) {
				return
			}
		}
		if !p.waitDialTurn(ctx) {
			return
		}
		c, err := p.connect(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			fails++
			p.connectFailed(err)
			continue
		}
		p.addConn(c)
		conns.Go(c.run)
		select {
		case <-ctx.Done():
			return
		case <-c.drainingCh:
		}
		c.mu.Lock()
		if c.proven {
			fails = 0
		} else {
			fails++
		}
		c.mu.Unlock()
	}
}

// connect dials and exchanges the first frames.
func (p *Pool) connect(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	nc, err := p.cfg.Dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	c := newConn(p, nc)
	err = c.handshake()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	return c, nil
}

// connectFailed notes that an attempt to connect failed. If no other connection is open, it ends
// the queued requests.
func (p *Pool) connectFailed(err error) {
	p.mu.Lock()
	if len(*p.ready.Load()) > 0 {
		p.mu.Unlock()
		return
	}
	if p.dialErr == nil {
		p.cfg.Log.Warn("provider cannot be reached; will try again", "err", err)
	}
	p.dialErr = err
	p.failQueued(p.unavailableErr())
}

// waitDialTurn waits until this goroutine may connect: Config.Stagger after the previous attempt. If
// many connections were opened together, the provider could take that for an attack. waitDialTurn
// returns false if ctx ends first.
func (p *Pool) waitDialTurn(ctx context.Context) bool {
	p.mu.Lock()
	now := time.Now()
	at := p.nextDial
	if at.Before(now) {
		at = now
	}
	p.nextDial = at.Add(p.cfg.Stagger)
	p.mu.Unlock()
	return sleep(ctx, at.Sub(now))
}

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
