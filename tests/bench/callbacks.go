package main

import (
	"bytes"
	"context"
	"errors"
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

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// calls is how many callbacks are under way at a time, on both sides.
const calls = 64

// callbacks measures P8: triggers that were registered through the service and
// become due at one millisecond, through timer engine, delay queue, claim, signed
// POST and outcome, on a store that fsyncs, until every outcome is durable and
// every message is acknowledged. The reference posts with net/http alone, to the
// same receiver in this process: the bytes and headers of one of our calls, over
// as many kept connections.
func callbacks(ctx context.Context, b *bench) error {
	r, err := newReceiver()
	if err != nil {
		return err
	}
	defer r.server.Close()
	l, err := b.pipeline(ctx, r.url)
	if err != nil {
		return err
	}
	// The first calls show what the reference has to send.
	n := 2000
	_, err = l.fire(ctx, n)
	if err != nil {
		return errors.Join(err, l.close())
	}
	var perCall, best float64
	ours := &side{name: "triggers", run: func(d time.Duration) (float64, error) {
		f, err := l.fire(ctx, n)
		if err != nil {
			return 0, err
		}
		n = max(1000, int(f.rate*d.Seconds()))
		if f.rate > best {
			best, perCall = f.rate, f.cost
		}
		return f.rate, nil
	}}
	bare := &side{name: "net/http", run: func(d time.Duration) (float64, error) { return r.post(ctx, d) }}
	err = b.alternate("P8", b.length(4*time.Second, 2*time.Second), ours, bare)
	if err := errors.Join(err, l.close()); err != nil {
		return err
	}
	b.add(result{ID: "P8", Work: fmt.Sprintf("callbacks of triggers due at once, %d at a time, fsynced, to the durable outcome; %.0f ns of processor a call, receiver included; ref: net/http alone, %.0f ns", calls, perCall, bare.cost),
		Value: ours.best, Unit: "callbacks/s", Reference: bare.best, main: true}, ratioOf(0.6))
	return nil
}

// receiver is a plain net/http server that reads a body and answers 200. It
// keeps the first request it gets.
type receiver struct {
	server *http.Server
	url    string
	got    atomic.Int64
	first  sync.Once
	header http.Header
	body   []byte
}

func newReceiver() (*receiver, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{url: "http://" + ln.Addr().String() + "/hooks/"}
	r.server = &http.Server{Handler: r, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	go func() { _ = r.server.Serve(ln) }() // ends with Close
	return r, nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	r.first.Do(func() { r.header, r.body = q.Header.Clone(), body })
	r.got.Add(1)
	w.WriteHeader(http.StatusOK)
}

// post is the reference; it returns calls per second.
func (r *receiver) post(ctx context.Context, d time.Duration) (float64, error) {
	header := r.header.Clone()
	header.Del("Accept-Encoding") // the transport's own business
	header.Del("Content-Length")
	tr := &http.Transport{MaxIdleConns: calls, MaxIdleConnsPerHost: calls, DisableCompression: r.header.Get("Accept-Encoding") == ""}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: 10 * time.Second}
	var done atomic.Int64
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for range calls {
		g.Go(func() error {
			for time.Since(began) < d {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"x", bytes.NewReader(r.body))
				if err != nil {
					return err
				}
				req.Header = header.Clone() // each call of ours has its own
				resp, err := client.Do(req)
				if err != nil {
					return err
				}
				_, err = io.Copy(io.Discard, resp.Body)
				if err := errors.Join(err, resp.Body.Close()); err != nil {
					return err
				}
				if resp.StatusCode != http.StatusOK {
					return errors.New(resp.Status)
				}
				done.Add(1)
			}
			return nil
		})
	}
	err := g.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), err
}

// pipeline is everything a trigger goes through, put together as in
// pkg/app/later.go, without the API and its JSON over HTTP.
type pipeline struct {
	url        string
	dir        string
	store      *pebble.Store
	timers     *timer.Engine
	triggers   *trigger.Service
	dispatcher *trigger.Dispatcher
	queue      engine.Queue
	fired      atomic.Int64
	other      atomic.Int64 // ended in another way
	stop       context.CancelFunc
	done       chan error
	requests   int
}

const benchCaller = "bench"

type parker struct{ *timer.Engine }

func (p parker) Put(ctx context.Context, ts []engine.Timer) error { return p.Park(ctx, ts) }

// noDead fails the run when a trigger fails.
type noDead struct{}

func (noDead) Append(_ context.Context, rs []trigger.DeadRecord) error {
	return fmt.Errorf("%d triggers failed", len(rs))
}

func (b *bench) pipeline(ctx context.Context, url string) (l *pipeline, err error) {
	l = &pipeline{url: url, dir: b.folder("triggers"), done: make(chan error, 2)}
	if l.store, err = pebble.Open(pebble.Config{Dir: l.dir}); err != nil {
		return nil, err
	}
	defer func(store *pebble.Store) {
		if err != nil {
			err = errors.Join(err, store.Close())
		}
	}(l.store)
	if err := l.store.Callers().Put(ctx, engine.Caller{
		ID: benchCaller, CallbackURLs: []string{url}, Secrets: []engine.CallerSecret{{Secret: trigger.NewSecret(), Created: time.Now().UnixMilli()}},
	}); err != nil {
		return nil, err
	}
	l.queue = l.store.Queue("triggers", 1000)
	l.timers = timer.New(timer.Config{
		Store: l.store.Timers(), Schedules: l.store.Schedules(), Cold: l.store.ColdTimers(), Heartbeats: memory.NewHeartbeats(),
		Owner: "bench", Shards: timerShards, Publish: trigger.ToQueue(l.queue),
	})
	egress, err := trigger.NewEgress(trigger.EgressConfig{Policy: trigger.EgressPolicy{
		Plain: true, AnyPort: true, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}})
	if err != nil {
		return nil, err
	}
	census := trigger.NewCensus(l.store.Triggers(), false)
	events := trigger.Events{Ended: func(_ string, s engine.TriggerState, _ string) {
		if s == engine.TriggerFired {
			l.fired.Add(1)
		} else {
			l.other.Add(1)
		}
	}}
	if l.triggers, err = trigger.New(trigger.Config{
		Triggers: l.store.Triggers(), Callers: l.store.Callers(), Idem: l.store.Idem(), Later: parker{l.timers}, Egress: egress, Census: census, Events: events,
	}); err != nil {
		return nil, err
	}
	if l.dispatcher, err = trigger.NewDispatcher(trigger.DispatcherConfig{
		Triggers: l.store.Triggers(), Callers: l.store.Callers(), Queue: l.queue, Later: parker{l.timers}, Dead: noDead{},
		Egress: egress, Census: census, CallerInFlight: calls, Events: events,
	}); err != nil {
		return nil, err
	}
	ctx, l.stop = context.WithCancel(ctx)
	go func() { l.done <- l.timers.Run(ctx) }()
	go func() { l.done <- l.dispatcher.Run(ctx) }()
	return l, nil
}

func (l *pipeline) close() error {
	l.stop()
	err := errors.Join(<-l.done, <-l.done, l.store.Close())
	forget(l.dir)
	return err
}

// fired is what one run showed.
type fired struct {
	rate float64 // calls per second, from the moment they were due
	cost float64 // processor ns a call in that time
}

// fire registers n triggers that are due at one moment and waits until all have
// fired. What registering costs is not in it.
func (l *pipeline) fire(ctx context.Context, n int) (fired, error) {
	due := time.Now().Add(2*time.Second + time.Duration(n)*100*time.Microsecond).Truncate(time.Millisecond)
	at := due.UTC()
	payload := `"` + strings.Repeat("payload ", 16) + `"`
	before := l.fired.Load()
	for from := 0; from < n; from += 1000 {
		size := min(1000, n-from)
		body := []byte("[")
		for i := range size {
			one, err := api.Trigger{CallbackURL: l.url + "x", Payload: []byte(payload), FireAt: &at, Exact: true}.MarshalJSON()
			if err != nil {
				return fired{}, err
			}
			if i > 0 {
				body = append(body, ',')
			}
			body = append(body, one...)
		}
		l.requests++
		a, err := l.triggers.RegisterBatch(ctx, request.Meta{Caller: benchCaller, Route: "POST /v1/triggers:batch", Key: fmt.Sprint(l.requests), ContentType: api.TypeJSON}, append(body, ']'))
		if err != nil {
			return fired{}, err
		}
		if want := fmt.Sprintf(`"accepted":%d,"rejected":0`, size); !bytes.Contains(a.Body, []byte(want)) {
			return fired{}, fmt.Errorf("not all of a batch was accepted: %.300s", a.Body)
		}
	}
	if left := time.Until(due); left < 0 {
		return fired{}, fmt.Errorf("registering %d triggers took %v longer than there was time", n, -left)
	}
	if early := l.fired.Load() - before; early > 0 {
		return fired{}, fmt.Errorf("%d triggers fired before they were due", early)
	}
	select {
	case <-time.After(time.Until(due)):
	case <-ctx.Done():
		return fired{}, ctx.Err()
	}
	used := cpu()
	for limit := due.Add(2 * time.Minute); ; {
		if k := l.other.Load(); k > 0 {
			return fired{}, fmt.Errorf("%d triggers did not fire", k)
		}
		if l.fired.Load()-before == int64(n) {
			// Fired rows are durable; what leads to them goes now.
			depth, err := l.queue.Depth(ctx)
			if err != nil {
				return fired{}, err
			}
			if depth.Ready+depth.Delayed+depth.InFlight == 0 {
				break
			}
		}
		if time.Now().After(limit) {
			return fired{}, fmt.Errorf("%d of %d triggers fired in two minutes", l.fired.Load()-before, n)
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return fired{}, ctx.Err()
		}
	}
	return fired{float64(n) / time.Since(due).Seconds(), float64(cpu()-used) / float64(n)}, nil
}
