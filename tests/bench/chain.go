package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// chain measures P6: fan-outs over HTTP through everything to the durable
// outcome and history, with a provider inside the process that accepts at once;
// fsynced, generator included. First with an address of 64 bytes resolved from
// each receiver's profile, then with addresses carried by the request.
func chain(ctx context.Context, b *bench) error {
	for _, with := range []addresses{inProfiles, inRequest} {
		if b.with != "" && b.with != string(with) {
			continue
		}
		if err := b.through(ctx, with); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) through(ctx context.Context, with addresses) error {
	dir := filepath.Join(b.dir, fmt.Sprintf("chain-%s-%d", with, b.users))
	cfg, err := b.config(dir, true)
	if err != nil {
		return err
	}
	cfg.Log.Linger = 10 * time.Millisecond
	cfg.Log.CapMiB = 4 << 10
	cfg.Workers.Push.InFlight = 50_000
	cfg.Log.Partitions["email"] = 6
	began := time.Now()
	if err := seed(ctx, dir, b.users, with); err != nil {
		return err
	}
	seeded := time.Now()
	m := newMeter()
	n, err := b.start(ctx, cfg, app.RoleAll, func(a *app.Node) { a.Observe(m.finished) })
	if err != nil {
		return err
	}
	b.notef("P6 %d users: seeded in %.0f s, loaded in %.0f s, %.0f MiB resident", b.users, seeded.Sub(began).Seconds(), time.Since(seeded).Seconds(), rss())
	err = b.chainRuns(ctx, n, m, with)
	err = errors.Join(err, n.end())
	if b.options.dir == "" {
		forget(dir)
	}
	return err
}

func (b *bench) chainRuns(ctx context.Context, n *node, m *meter, with addresses) error {
	s := load.Scenario{Name: "P6", Target: load.Fanout, Size: 50_000, Users: uint64(b.users), Body: text, Seed: rand.Uint64()}
	what := "address of 64 B resolved from the profile"
	if with == inRequest {
		// A mail address is the shortest a request can carry.
		s.Channel, s.Address = "email", true
		what = "address of 23 B in the request"
	}
	// Closed loop first: it warms up everything.
	closed := s
	closed.Duration, closed.Workers = b.closed, 12
	flat, err := b.drive(ctx, n, m, closed, "P6-closed-"+string(with))
	if err != nil {
		return err
	}
	open := s
	open.Duration, open.Rate, open.Workers = b.open, b.rate, 32
	at, err := b.drive(ctx, n, m, open, "P6-open-"+string(with))
	if err != nil {
		return err
	}
	wanted := info
	if with == inProfiles {
		wanted = atLeast(0.98*b.rate, "receivers/s")
	}
	ms := func(q float64) float64 { return round(float64(at.late.ValueAtQuantile(q))/1e6, 3) }
	b.add(result{ID: "P6", Work: fmt.Sprintf("open loop %.0f s at %s/s to the durable outcome, fsynced, %s; p50 %g p99 %g ms", b.open.Seconds(), number(b.rate), what, ms(50), ms(99)),
		Value: at.rate, Unit: "receivers/s", Reference: b.rate, main: with == inProfiles}, wanted)
	cores, backlog, loop := info, info, info
	if with == inProfiles {
		// At another rate than the one asked for, neither says anything.
		reached := at.rate >= 0.98*b.rate
		cores = need{"<= 1.5 cores at the rate", func(r result) bool { return reached && r.Value <= 1.5 }}
		backlog = need{"<= 0.5 s at the rate", func(r result) bool { return reached && r.Value <= 0.5 }}
		loop = atLeast(6e6, "receivers/s")
	}
	b.add(result{ID: "P6", Work: fmt.Sprintf("its processor time, generator included; %.0f ns a receiver, %.0f to %.0f MiB resident", at.cores/at.rate*1e9, at.rssFrom, at.rssTo), Value: at.cores, Unit: "cores"}, cores)
	b.add(result{ID: "P6", Work: fmt.Sprintf("its backlog at the end, against the middle: %s of %s receivers", number(float64(at.backlogEnd)), number(float64(at.backlogMid))), Value: float64(max(at.backlogEnd, 0)) / b.rate, Unit: "s of load"}, backlog)
	b.add(result{ID: "P6", Work: fmt.Sprintf("closed loop, %s; %.2f cores, %.0f ns", what, flat.cores, flat.cores/flat.rate*1e9), Value: flat.rate, Unit: "receivers/s"}, loop)
	return b.lookups(ctx, n, m, with)
}

// meter counts envelopes whose outcome is durable.
type meter struct {
	mu    sync.Mutex
	done  int64
	late  *hdrhistogram.Histogram // ns from acceptance, per receiver
	some  []notify.ID             // a sample, for lookups
	total int64
}

func newMeter() *meter { return &meter{late: newHistogram()} }

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1000, int64(10*time.Minute), 3)
}

func (m *meter) finished(e *notify.Envelope) {
	if e.Derived() {
		return
	}
	took := time.Since(time.UnixMilli(e.Accepted))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += int64(e.Count)
	m.total++
	_ = m.late.RecordValues(max(int64(took), 1000), int64(e.Count))
	if id := e.ID(e.First); len(m.some) < 20_000 {
		m.some = append(m.some, id)
	} else if i := rand.IntN(int(m.total)); i < len(m.some) {
		m.some[i] = id
	}
}

func (m *meter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = 0
	m.late.Reset()
}

func (m *meter) count() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.done
}

// driven is what one run showed.
type driven struct {
	rate                   float64 // durable outcomes per second while load was offered
	cores                  float64
	late                   *hdrhistogram.Histogram
	backlogMid, backlogEnd int64 // accepted without a durable outcome
	rssFrom, rssTo         float64
}

// drive offers a scenario and watches what comes out. Everything accepted must
// come out, or the run fails.
func (b *bench) drive(ctx context.Context, n *node, m *meter, s load.Scenario, name string) (driven, error) {
	m.reset()
	var accepted atomic.Int64
	s = s.WithDefaults()
	target, err := load.NewHTTP(s, n.client)
	if err != nil {
		return driven{}, err
	}
	var d driven
	d.rssFrom = rss()
	var offered load.Target = &inTime{target, time.Now().Add(s.Duration * 6 / 5)}
	if s.Rate == 0 {
		offered = &window{Target: target, m: m, size: int64(s.Size)}
	}
	watch := func(p load.Progress) {
		accepted.Store(p.Total.Accepted)
		back := p.Total.Accepted - m.count()
		if p.Total.Elapsed < s.Duration/2+500*time.Millisecond {
			d.backlogMid = back
		}
		if b.verbose {
			b.notef("%s %5.1f s  accepted %5.2fM/s  durable %12d  backlog %8d  %5.0f MiB  response p99 %.0f ms", name, p.Total.Elapsed.Seconds(),
				float64(p.Last.Accepted)/p.Last.Elapsed.Seconds()/1e6, m.count(), back, rss(), float64(p.Total.Response.ValueAtQuantile(99))/1e6)
		}
	}
	sp := b.span(name)
	r, err := load.Run(ctx, s, load.Config{Target: offered, Progress: watch, Every: min(time.Second, s.Duration/8)})
	if err != nil {
		return d, err
	}
	out := m.count()
	var took time.Duration
	d.cores, took = sp.cores()
	sum := r.Summary()
	sum.Failed -= sum.Errors[codeOver] * int64(s.Size)
	if sum.Failed > 0 || sum.Rejected > 0 {
		return d, fmt.Errorf("%d receivers failed, %d were rejected: %v", sum.Failed, sum.Rejected, sum.Errors)
	}
	d.rate = float64(out) / took.Seconds()
	d.backlogEnd = sum.Accepted - out
	for began := time.Now(); m.count() < sum.Accepted; {
		if time.Since(began) > 5*time.Minute {
			return d, fmt.Errorf("%d of %d receivers have no outcome five minutes after the end", sum.Accepted-m.count(), sum.Accepted)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return d, ctx.Err()
		}
	}
	if over := m.count() - sum.Accepted; over > 0 {
		return d, fmt.Errorf("%d receivers more than accepted have an outcome", over)
	}
	d.rssTo = rss()
	m.mu.Lock()
	d.late = hdrhistogram.Import(m.late.Export())
	m.mu.Unlock()
	return d, nil
}

// inTime ends an open loop that is far behind its rate: what is not sent by then
// is not sent at all, and the rate says so.
type inTime struct {
	load.Target
	until time.Time
}

const codeOver = "over"

func (t *inTime) Send(ctx context.Context, body []byte, key string) (load.Reply, error) {
	if time.Now().After(t.until) {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: codeOver, Msg: "the time is over"}
	}
	return t.Target.Send(ctx, body, key)
}

// outstanding is how many receivers of a closed loop may be without an outcome.
const outstanding = 3_000_000

// window closes the loop over the whole chain, not only over the answers: it
// holds requests back while too much has no outcome yet.
type window struct {
	load.Target
	m    *meter
	size int64
	sent atomic.Int64
}

func (w *window) Send(ctx context.Context, body []byte, key string) (load.Reply, error) {
	w.sent.Add(w.size)
	for w.sent.Load()-w.m.count() > outstanding {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return w.Target.Send(ctx, body, key)
}

// lookups measures GET of single receivers and of users, over HTTP, with the
// chain idle.
func (b *bench) lookups(ctx context.Context, n *node, m *meter, with addresses) error {
	h := newHistogram()
	m.mu.Lock()
	ids := m.some
	m.mu.Unlock()
	for range b.rounds * 400 {
		id := ids[rand.IntN(len(ids))]
		began := time.Now()
		if _, err := n.client.Notification(ctx, id.String()); err != nil {
			return fmt.Errorf("looking up %s: %w", id, err)
		}
		_ = h.RecordValue(int64(time.Since(began)))
	}
	want := info
	if with == inProfiles {
		want = atMost(1.5, "ms")
	}
	ms := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1e6 }
	b.add(result{ID: "P6", Work: fmt.Sprintf("lookup of one receiver over HTTP, p99 of %d; p50 %.2f ms", h.TotalCount(), ms(50)), Value: ms(99), Unit: "ms"}, want)
	return nil
}
