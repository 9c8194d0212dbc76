package main

import (
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
	"github.com/notifyd/notifyd/tests/internal/rig"
)

const (
	pushConns   = 10
	pushStreams = 1000
	pushLatency = 50 * time.Millisecond
	pushWindow  = 1000 // items of a call, as in a worker's claim window
	pushCalls   = 16   // calls at a time; together they have more items than there are streams
)

// measurePushes measures P5: pushes through the APNs client. The client renders and signs each
// push, and each push has its own answer. The client has 10 connections of 1,000 streams to a sink
// that answers after 50 ms. The sink is another process, so that its processor time is not
// measured. The reference is a loop that only copies prepared frames and counts the answers.
func measurePushes(ctx context.Context, b *bench) {
	s := startSink(ctx)
	key := rig.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	ours := &side{name: "apns", run: func(d time.Duration) float64 { return s.send(ctx, b, key, d) }}
	loop := &side{name: "loop", run: func(d time.Duration) float64 { return s.loop(ctx, d) }}
	b.alternate("P5", b.length(4*time.Second, 2*time.Second), ours, loop)
	s.stop()
	us := func(s *side) float64 { return s.cost / 1000 }
	what := fmt.Sprintf("%d connections x %d streams, answers after %v", pushConns, pushStreams, pushLatency)
	b.add(result{ID: "P5", Work: "pushes through the APNs client, " + what + "; ref: a loop over prepared frames",
		Value: ours.best, Unit: "pushes/s", Reference: loop.best, main: true}, atLeast(150e3, "pushes/s"))
	b.add(result{ID: "P5", Work: "processor time of the client for a push; ref: the loop",
		Value: us(ours), Unit: "us/push", Reference: us(loop)}, atMost(6, "us/push"))
}

// pushSink controls the sink: the process that receives and answers the pushes.
type pushSink struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
	sent atomic.Int64 // pushes that the sink has answered as accepted

	addr  string
	roots *x509.CertPool
}

// sinkHello is what the sink prints: Addr and CA when it begins to listen, and Pushes when it ends.
type sinkHello struct {
	Addr, CA string
	Pushes   int64
}

func startSink(ctx context.Context) *pushSink {
	s := &pushSink{cmd: exec.CommandContext(ctx, rig.Must(os.Executable()), pushSinkArg), roots: x509.NewCertPool()}
	s.cmd.Stderr = os.Stderr
	s.in = rig.Must(s.cmd.StdinPipe())
	s.out = json.NewDecoder(rig.Must(s.cmd.StdoutPipe()))
	rig.Ok(s.cmd.Start())
	h := s.hear()
	if s.addr = h.Addr; !s.roots.AppendCertsFromPEM([]byte(h.CA)) {
		panic(errors.New("the sink printed no valid certificate"))
	}
	return s
}

func (s *pushSink) hear() (h sinkHello) {
	rig.Ok(s.out.Decode(&h))
	return h
}

// stop ends the sink. It panics if the sink has answered fewer pushes than were sent.
func (s *pushSink) stop() {
	rig.Ok(s.in.Close())
	if h := s.hear(); h.Pushes < s.sent.Load() {
		panic(fmt.Errorf("the sink answered only %d of %d pushes", h.Pushes, s.sent.Load()))
	}
	rig.Ok(s.cmd.Wait())
}

// send sends pushes for d through a new APNs client and returns accepted pushes per second.
func (s *pushSink) send(ctx context.Context, b *bench, key *ecdsa.PrivateKey, d time.Duration) float64 {
	log := slog.New(slog.DiscardHandler)
	if b.verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	a := rig.Must(provider.NewAPNs(provider.APNsConfig{
		PushConfig: provider.PushConfig{
			Endpoint: provider.Endpoint{BaseURL: "https://" + s.addr, RootCAs: s.roots, Timeout: 30 * time.Second, DialTimeout: 30 * time.Second},
			Stagger:  time.Millisecond, Log: log,
		},
		Connections: pushConns, Confirmed: true,
		TeamID: "TEAM123456", KeyID: "KEY1234567", Key: key, Topic: "com.example.app",
	}))
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
					mu.Lock() // a worker has a lock for its results, too
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
		panic(fmt.Errorf("%d pushes were not accepted", n))
	}
	return rate
}

func pushCall(c int) *notify.Call {
	call := &notify.Call{Channel: notify.Push, Category: notify.Transactional, Caller: benchCaller, Expires: time.Now().Add(time.Hour).UnixMilli(),
		Content: &notify.Content{Title: "Your order", Body: "It is on its way.", Data: []byte(`{"order":"12345"}`)}}
	key := &notify.RowKey{Chunk: notify.Chunk{Base: notify.NewBase(time.Now())}}
	for i := range pushWindow {
		call.Items = append(call.Items, notify.Item{Key: key, Index: uint32(i), FanOut: true, User: []byte("u"), Address: fmt.Appendf(nil, "apns:%064x", c*pushWindow+i)})
	}
	return call
}
