package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
)

const (
	pushConns   = 10
	pushStreams = 1000
	pushLatency = 50 * time.Millisecond
	pushWindow  = 1000 // items of a call, as in a worker's claim window
	pushCalls   = 16   // calls at a time: more items than there are streams
)

// pushes measures P5: pushes through the APNs client, rendered, signed and
// answered one by one, over 10 connections of 1,000 streams to a sink that answers
// after 50 ms. The sink is a process of its own, so that the processor time is the
// client's alone. The reference is a loop that only copies prepared frames and counts
// what comes back.
func pushes(ctx context.Context, b *bench) (err error) {
	s, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.ready(); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ours := &side{name: "apns", run: func(d time.Duration) (float64, error) { return s.send(ctx, b, key, d) }}
	loop := &side{name: "loop", run: func(d time.Duration) (float64, error) { return s.loop(ctx, d) }}
	if err := b.alternate("P5", b.length(4*time.Second, 2*time.Second), ours, loop); err != nil {
		return err
	}
	us := func(s *side) float64 { return s.cost / 1000 }
	what := fmt.Sprintf("%d connections x %d streams, answers after %v", pushConns, pushStreams, pushLatency)
	b.add(result{ID: "P5", Work: "pushes through the APNs client, " + what + "; ref: a loop over prepared frames",
		Value: ours.best, Unit: "pushes/s", Reference: loop.best, main: true}, atLeast(150e3, "pushes/s"))
	b.add(result{ID: "P5", Work: "processor time of a push, the client's alone; ref: the loop",
		Value: us(ours), Unit: "us/push", Reference: us(loop)}, atMost(6, "us/push"))
	return nil
}

// pushSink is the process that takes the pushes.
type pushSink struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	sent atomic.Int64 // that came back as accepted

	addr  string
	roots *x509.CertPool
}

// sinkHello is what the sink says when it listens, and when it ends.
type sinkHello struct {
	Addr, CA string
	Pushes   int64
}

func startSink(ctx context.Context) (*pushSink, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &pushSink{cmd: exec.CommandContext(ctx, exe, pushSinkArg)}
	s.cmd.Stderr = os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	return s, s.cmd.Start()
}

func (s *pushSink) hear() (h sinkHello, err error) {
	line, err := s.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &h)
	}
	return h, err
}

func (s *pushSink) ready() error {
	h, err := s.hear()
	if err != nil {
		return fmt.Errorf("the sink does not start: %w", err)
	}
	s.addr, s.roots = h.Addr, x509.NewCertPool()
	if !s.roots.AppendCertsFromPEM([]byte(h.CA)) {
		return errors.New("the sink has no certificate")
	}
	return nil
}

// stop ends the sink, which must have seen every push.
func (s *pushSink) stop() error {
	err := s.in.Close()
	h, herr := s.hear()
	if herr == nil && h.Pushes < s.sent.Load() {
		herr = fmt.Errorf("the sink saw %d of %d pushes", h.Pushes, s.sent.Load())
	}
	return errors.Join(err, herr, s.cmd.Wait())
}

// send pushes for d through a client of its own, and returns pushes per second.
func (s *pushSink) send(ctx context.Context, b *bench, key *ecdsa.PrivateKey, d time.Duration) (float64, error) {
	log := slog.New(slog.DiscardHandler)
	if b.verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	a, err := provider.NewAPNs(provider.APNsConfig{
		PushConfig: provider.PushConfig{
			Endpoint:    provider.Endpoint{BaseURL: "https://" + s.addr, RootCAs: s.roots, Timeout: 30 * time.Second, DialTimeout: 30 * time.Second},
			Connections: pushConns, Stagger: time.Millisecond, Log: log,
		},
		TeamID: "TEAM123456", KeyID: "KEY1234567", Key: key, Topic: "com.example.app",
	})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var run, calls sync.WaitGroup
	run.Go(func() { _ = a.Run(ctx) })
	var accepted, other atomic.Int64
	began := time.Now()
	for c := range pushCalls {
		call := pushCall(c)
		calls.Go(func() {
			for time.Since(began) < d && ctx.Err() == nil {
				n := 0
				var mu sync.Mutex
				a.Send(ctx, call, notify.Each(func(_ int, r notify.Result) {
					if r.Class != notify.ClassAccepted {
						other.Add(1)
						return
					}
					mu.Lock() // as a worker does
					n++
					mu.Unlock()
				}))
				accepted.Add(int64(n))
			}
		})
	}
	calls.Wait()
	rate := float64(accepted.Load()) / time.Since(began).Seconds()
	cancel()
	run.Wait()
	s.sent.Add(accepted.Load())
	if n := other.Load(); n > 0 {
		return 0, fmt.Errorf("%d pushes were not accepted", n)
	}
	return rate, nil
}

func pushCall(c int) *notify.Call {
	call := &notify.Call{Channel: notify.Push, Category: notify.Transactional, Caller: benchCaller, Expires: time.Now().Add(time.Hour).UnixMilli(),
		Content: &notify.Content{Title: "Your order", Body: "It is on its way.", Data: []byte(`{"order":"12345"}`)}}
	key := &notify.RowKey{Chunk: notify.Chunk{Base: notify.NewBase(time.Now())}}
	for i := range pushWindow {
		call.Items = append(call.Items, notify.Item{Key: key, Index: uint32(i), Fan: true, User: []byte("u"), Address: fmt.Appendf(nil, "apns:%064x", c*pushWindow+i)})
	}
	return call
}
