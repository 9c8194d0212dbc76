package trigger

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/notify"
)

// benchSink is a receiver in this process.
func benchSink(b *testing.B) (url string, got *atomic.Int64) {
	b.Helper()
	got = new(atomic.Int64)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got.Add(1)
		w.WriteHeader(http.StatusOK)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	b.Cleanup(s.Close)
	return s.URL + "/hooks/", got
}

const (
	benchCalls = 64 // at a time, on both sides
	benchN     = 20_000
)

// bareLoop posts the same bodies with net/http alone, and returns calls per
// second.
func bareLoop(b *testing.B, url string, n int) float64 {
	b.Helper()
	tr := &http.Transport{MaxIdleConns: benchCalls, MaxIdleConnsPerHost: benchCalls}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: 10 * time.Second}
	row := engine.Trigger{ID: idOf(notify.NewBase(time.Now())), Payload: benchPayload}
	payload := callbackBody(&row)
	var next atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range benchCalls {
		wg.Go(func() {
			for next.Add(1) <= int64(n) {
				req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url+"x", bytes.NewReader(payload))
				if err != nil {
					b.Error(err)
					return
				}
				req.Header.Set("Content-Type", "application/json")
				resp, err := client.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(began).Seconds()
}

var benchPayload = bytes.Repeat([]byte("payload "), 16)

// dispatchAll dispatches n triggers that are due, and returns calls per second
// to the last acknowledgement.
func dispatchAll(b *testing.B, p *plant, url string, n int) (rate float64, cpu time.Duration) {
	b.Helper()
	ctx := context.Background()
	now := time.Now()
	var rows []engine.Trigger
	var ms []engine.Message
	for range n {
		base := notify.NewBase(now)
		rows = append(rows, engine.Trigger{
			ID: idOf(base), Caller: "shop", URL: url + "x", Payload: benchPayload, State: engine.TriggerPending,
			Created: now.UnixMilli(), FireAt: now.UnixMilli(), NextAt: now.UnixMilli(),
		})
		ms = append(ms, engine.Message{Body: message{base: base, attempt: 1, caller: callerDigest("shop")}.encode()})
	}
	for i := 0; i < n; i += 1000 {
		if _, err := p.cfg.Triggers.Create(ctx, rows[i:min(i+1000, n)]); err != nil {
			b.Fatal(err)
		}
		if err := p.cfg.Queue.Enqueue(ctx, ms[i:min(i+1000, n)]); err != nil {
			b.Fatal(err)
		}
	}
	var ended atomic.Int64
	p.cfg.Events = Events{Ended: func(string, engine.TriggerState, string) { ended.Add(1) }}
	d, err := NewDispatcher(p.cfg)
	if err != nil {
		b.Fatal(err)
	}
	began, used := time.Now(), cpuTime()
	run, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.Run(run)
	}()
	for ended.Load() < int64(n) {
		time.Sleep(2 * time.Millisecond)
	}
	for {
		depth, err := p.cfg.Queue.Depth(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if depth == (engine.QueueDepth{}) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	took := time.Since(began)
	cpu = cpuTime() - used
	stop()
	<-done
	return float64(n) / took.Seconds(), cpu
}

// BenchmarkP8 compares the dispatch of triggers that are due now with a bare loop of net/http. The
// dispatch includes state rows, claims, signatures, guard and outcomes. The loop posts the same
// bodies to the same receiver. Both run in one process, in turns. With pebble, rows and messages
// are in the embedded store, and each write is fsynced.
func BenchmarkP8(b *testing.B) {
	for _, engines := range []string{"memory", "pebble"} {
		b.Run(engines, func(b *testing.B) {
			url, _ := benchSink(b)
			p := benchPlant(b, url)
			if engines == "pebble" {
				s, err := pebble.Open(pebble.Config{Dir: b.TempDir()})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				p.cfg.Triggers, p.cfg.Queue = s.Triggers(), s.Queue("triggers", 1000)
			}
			compareP8(b, engines, p, url)
		})
	}
}

func compareP8(b *testing.B, engines string, p *plant, url string) {
	bareLoop(b, url, 2000) // warm up
	var bare, ours, bareCPU, oursCPU []float64
	for b.Loop() {
		c := cpuTime()
		bare = append(bare, bareLoop(b, url, benchN))
		bareCPU = append(bareCPU, (cpuTime()-c).Seconds()/benchN*1e6)
		rate, cpu := dispatchAll(b, p, url, benchN)
		ours = append(ours, rate)
		oursCPU = append(oursCPU, cpu.Seconds()/benchN*1e6)
	}
	median := func(xs []float64) float64 { return slices.Sorted(slices.Values(xs))[len(xs)/2] }
	r := median(ours) / median(bare)
	b.ReportMetric(r, "ratio")
	fmt.Printf("p8 engines=%s bare_per_s=%.0f dispatched_per_s=%.0f ratio=%.2f bare_cpu_us=%.1f dispatched_cpu_us=%.1f cpu_ratio=%.2f\n",
		engines, median(bare), median(ours), r, median(bareCPU), median(oursCPU), median(bareCPU)/median(oursCPU))
}

// cpuTime returns the processor time that this process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchPlant(b *testing.B, url string) *plant {
	b.Helper()
	e, err := NewEgress(EgressConfig{Policy: onLoopback})
	if err != nil {
		b.Fatal(err)
	}
	p := newPlant(b, func(c *DispatcherConfig) {
		c.Egress, c.post = e, nil
		c.CallerInFlight = benchCalls
	})
	p.putCaller(engine.Caller{ID: "shop", CallbackURLs: []string{url}})
	return p
}
