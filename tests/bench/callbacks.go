package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/pkg/trigger"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// calls is the number of concurrent callbacks, for the product and for the reference.
const calls = 64

// measureCallbacks measures P8: triggers that are all due at the same millisecond. They are
// registered before they are due, and the registration is not measured. Then each trigger passes
// the timer engine, the delay queue, the claim, the signed POST and the write of its outcome, on a
// store that fsyncs. The measurement ends when every outcome is durable and every queue message is
// acknowledged.
//
// The reference sends POST requests with net/http alone, to the same receiver in this process. They
// have the body and headers of a callback of notifyd, and use the same number of kept-alive
// connections.
func measureCallbacks(ctx context.Context, b *bench) {
	r := newReceiver()
	defer r.server.Close()
	l := b.pipeline(ctx, r.url)
	// This first run is not measured. It gives the receiver the request that the reference will
	// send.
	n := 2000
	l.fireTogether(ctx, n)
	var perCall, best float64
	ours := &side{name: "triggers", run: func(d time.Duration) float64 {
		f := l.fireTogether(ctx, n)
		n = max(1000, int(f.rate*d.Seconds()))
		if f.rate > best {
			best, perCall = f.rate, f.cost
		}
		return f.rate
	}}
	bare := &side{name: "net/http", run: func(d time.Duration) float64 { return r.post(ctx, d) }}
	b.alternate("P8", b.length(4*time.Second, 2*time.Second), ours, bare)
	l.close()
	b.add(result{ID: "P8", Work: fmt.Sprintf("callbacks of triggers that are due at the same moment, %d calls at a time, fsynced, until the outcome is durable; %.0f ns of processor time for each call, receiver included; ref: net/http alone, %.0f ns", calls, perCall, bare.cost),
		Value: ours.best, Unit: "callbacks/s", Reference: bare.best, main: true}, ratioOf(0.6))
}

// receiver is a plain net/http server that reads the body of each request and answers 200. It keeps
// the header and the body of the first request.
type receiver struct {
	server *http.Server
	url    string
	got    atomic.Int64
	first  sync.Once
	header http.Header
	body   []byte
}

func newReceiver() *receiver {
	ln := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	r := &receiver{url: "http://" + ln.Addr().String() + "/hooks/"}
	r.server = &http.Server{Handler: r, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	go func() { _ = r.server.Serve(ln) }() // ends when server.Close is called
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	r.first.Do(func() { r.header, r.body = q.Header.Clone(), body })
	r.got.Add(1)
	w.WriteHeader(http.StatusOK)
}

// post sends the request of the reference for about d, and returns calls per second.
func (r *receiver) post(ctx context.Context, d time.Duration) float64 {
	header := r.header.Clone()
	header.Del("Accept-Encoding") // the transport sets this header itself
	header.Del("Content-Length")
	tr := &http.Transport{MaxIdleConns: calls, MaxIdleConnsPerHost: calls, DisableCompression: r.header.Get("Accept-Encoding") == ""}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: 10 * time.Second}
	return flood(ctx, calls, d, func(ctx context.Context, _ int) int {
		req := rig.Must(http.NewRequestWithContext(ctx, http.MethodPost, r.url+"x", bytes.NewReader(r.body)))
		req.Header = header.Clone()      // each call of the product has its own header map, too
		resp := rig.Must(client.Do(req)) //nolint:bodyclose // the body is closed below
		rig.Must(io.Copy(io.Discard, resp.Body))
		rig.Ok(resp.Body.Close())
		if resp.StatusCode != http.StatusOK {
			panic(fmt.Errorf("the receiver answered %s, not 200", resp.Status))
		}
		return 1
	})
}

// pipeline has all components that a trigger passes, connected as in pkg/app/later.go. It has no
// HTTP API.
type pipeline struct {
	url        string
	dir        string
	store      *pebble.Store
	timers     *timer.Engine
	triggers   *trigger.Service
	dispatcher *trigger.Dispatcher
	queue      engine.Queue
	fired      atomic.Int64 // triggers that ended in state fired
	other      atomic.Int64 // triggers that ended in another state
	running    [2]*background
	requests   int // number of requests so far; the number is the idempotency key
}

const benchCaller = "bench"

type parker struct{ *timer.Engine }

func (p parker) Put(ctx context.Context, ts []engine.Timer) error { return p.Park(ctx, ts) }

// noDead returns an error for every dead letter, so the run fails if a trigger fails.
type noDead struct{}

func (noDead) Append(_ context.Context, rs []trigger.DeadRecord) error {
	return fmt.Errorf("%d triggers failed and became dead letters", len(rs))
}

func (b *bench) pipeline(ctx context.Context, url string) *pipeline {
	l := &pipeline{url: url, dir: b.folder("triggers")}
	l.store = rig.Must(pebble.Open(pebble.Config{Dir: l.dir}))
	rig.Ok(l.store.Callers().Put(ctx, engine.Caller{
		ID: benchCaller, CallbackURLs: []string{url}, Secrets: []engine.CallerSecret{{Secret: trigger.NewSecret(), Created: time.Now().UnixMilli()}},
	}))
	l.queue = l.store.Queue("triggers", 1000)
	l.timers = timer.New(timer.Config{
		Store: l.store.Timers(), Schedules: l.store.Schedules(), Cold: l.store.ColdTimers(), Heartbeats: memory.NewHeartbeats(),
		Owner: "bench", Shards: timerShards, Publish: trigger.ToQueue(l.queue),
	})
	egress := rig.Must(trigger.NewEgress(trigger.EgressConfig{Policy: trigger.EgressPolicy{
		Plain: true, AnyPort: true, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}}))
	census := trigger.NewCensus(l.store.Triggers(), false)
	events := trigger.Events{Ended: func(_ string, s engine.TriggerState, _ string) {
		if s == engine.TriggerFired {
			l.fired.Add(1)
		} else {
			l.other.Add(1)
		}
	}}
	l.triggers = rig.Must(trigger.New(trigger.Config{
		Triggers: l.store.Triggers(), Callers: l.store.Callers(), Idem: l.store.Idem(), Later: parker{l.timers}, Egress: egress, Census: census, Events: events,
	}))
	l.dispatcher = rig.Must(trigger.NewDispatcher(trigger.DispatcherConfig{
		Triggers: l.store.Triggers(), Callers: l.store.Callers(), Queue: l.queue, Later: parker{l.timers}, Dead: noDead{},
		Egress: egress, Census: census, CallerInFlight: calls, Events: events,
	}))
	l.running = [2]*background{inBackground(ctx, l.timers.Run), inBackground(ctx, l.dispatcher.Run)}
	return l
}

func (l *pipeline) close() {
	for _, r := range l.running {
		r.end()
	}
	rig.Ok(l.store.Close())
	removeFolders(l.dir)
}

// fired is the result of one run.
type fired struct {
	rate float64 // calls per second, measured from the due time
	cost float64 // processor time in ns per call, measured from the due time
}

// fireTogether registers n triggers that are due at the same moment and waits until all of them
// have fired. The result does not include the registration. fireTogether panics if a trigger fires
// early, fails, or has not fired two minutes after its due time.
func (l *pipeline) fireTogether(ctx context.Context, n int) fired {
	due := time.Now().Add(2*time.Second + time.Duration(n)*100*time.Microsecond).Truncate(time.Millisecond)
	at := due.UTC()
	payload := `"` + strings.Repeat("payload ", 16) + `"`
	before := l.fired.Load()
	for from := 0; from < n; from += 1000 {
		size := min(1000, n-from)
		body := []byte("[")
		for i := range size {
			one := rig.Must(api.Trigger{CallbackURL: l.url + "x", Payload: []byte(payload), FireAt: &at, Exact: true}.MarshalJSON())
			if i > 0 {
				body = append(body, ',')
			}
			body = append(body, one...)
		}
		l.requests++
		a := rig.Must(l.triggers.RegisterBatch(ctx, request.Meta{Caller: benchCaller, Route: "POST /v1/triggers:batch", Key: fmt.Sprint(l.requests), ContentType: api.TypeJSON}, append(body, ']')))
		if want := fmt.Sprintf(`"accepted":%d,"rejected":0`, size); !bytes.Contains(a.Body, []byte(want)) {
			panic(fmt.Errorf("not all triggers of a batch were accepted: %.300s", a.Body))
		}
	}
	if left := time.Until(due); left < 0 {
		panic(fmt.Errorf("the registration of %d triggers ended %v after their due time", n, -left))
	}
	if early := l.fired.Load() - before; early > 0 {
		panic(fmt.Errorf("%d triggers fired before they were due", early))
	}
	rig.Ok(rig.Pause(ctx, time.Until(due)))
	used := cpu()
	for limit := due.Add(2 * time.Minute); ; {
		if k := l.other.Load(); k > 0 {
			panic(fmt.Errorf("%d triggers did not fire", k))
		}
		if l.fired.Load()-before == int64(n) {
			// All outcomes are durable. Now wait until the queue has no message any more.
			depth := rig.Must(l.queue.Depth(ctx))
			if depth.Ready+depth.Delayed+depth.InFlight == 0 {
				break
			}
		}
		if time.Now().After(limit) {
			panic(fmt.Errorf("only %d of %d triggers fired within two minutes", l.fired.Load()-before, n))
		}
		rig.Ok(rig.Pause(ctx, 2*time.Millisecond))
	}
	return fired{float64(n) / time.Since(due).Seconds(), float64(cpu()-used) / float64(n)}
}
