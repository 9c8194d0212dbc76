package trigger

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// theProxy listens at the address that the environment of all tests names as the proxy.
var theProxy *listener

func TestMain(m *testing.M) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	theProxy = &listener{Listener: raw}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := theProxy.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		os.Setenv(name, "http://"+raw.Addr().String())
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		raw.Close()
		<-done
		os.Exit(code)
	}), goleak.IgnoreCurrent())
}

// in runs a test in a synctest bubble.
func in(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// in1 runs a part of a test in a bubble of its own.
func in1(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// ok is a good answer of a receiver.
var ok = result{status: http.StatusOK, class: ClassOK}

func status(n int) result {
	return result{status: n, class: classOfStatus(n), detail: http.StatusText(n)}
}

// received is a call that reached the receiver.
type received struct {
	at      time.Time
	id      string
	attempt string
	url     string
	header  http.Header
	body    []byte
}

// receivers stands for the callback URLs of all callers. Each caller has its own host.
type receivers struct {
	mu     sync.Mutex
	calls  []received
	byID   map[string]int                                              // number of calls
	answer func(id, host string, n int) (took time.Duration, r result) // n: how often the id was called, including this call
	before func(id string)
}

func (s *receivers) post(ctx context.Context, u *url.URL, h http.Header, body []byte) result {
	id := h.Get("X-Trigger-Id")
	if s.before != nil {
		s.before(id)
	}
	s.mu.Lock()
	s.calls = append(s.calls, received{time.Now(), id, h.Get("X-Trigger-Attempt"), u.String(), h, body})
	s.byID[id]++
	n := s.byID[id]
	answer := s.answer
	s.mu.Unlock()
	if answer == nil {
		return ok
	}
	took, r := answer(id, u.Hostname(), n)
	began := time.Now()
	if took > 0 {
		t := time.NewTimer(took)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			r = result{class: ClassTimeout}
		}
	}
	r.took = time.Since(began)
	return r
}

func (s *receivers) of(id string) (out []received) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c.id == id {
			out = append(out, c)
		}
	}
	return out
}

func (s *receivers) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// wheel is the timer engine of the tests. It stores index rows and puts each row into the queue at
// its time, once. If the same row is stored again, nothing changes, even if the row was put into
// the queue before, until its minute is closed. A wheel outlives the processes that use it.
type wheel struct {
	store   engine.Timers
	publish func(context.Context, []engine.Timer) error
	mu      sync.Mutex
	stopped bool
	timers  []*time.Timer
	met     map[metRow]struct{}
	rows    int
}

type metRow struct {
	at int64
	id string
}

// closedAfter is how long after its end a minute still accepts rows, in ms.
const closedAfter = 10_000

const testShards = 4

func (l *wheel) Put(ctx context.Context, ts []engine.Timer) error {
	if err := l.store.Put(ctx, notify.SpreadOver(testShards), ts); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now().UnixMilli()
	for _, x := range ts {
		at := x.FireAt
		if (at/60_000+1)*60_000+closedAfter < now {
			at = now
		}
		row := metRow{at, string(x.ID)}
		if _, ok := l.met[row]; ok {
			continue
		}
		l.met[row] = struct{}{}
		l.rows++
		l.timers = append(l.timers, time.AfterFunc(time.Until(time.UnixMilli(x.FireAt)), func() {
			l.mu.Lock()
			stopped := l.stopped
			l.mu.Unlock()
			if !stopped {
				_ = l.publish(context.Background(), []engine.Timer{x})
			}
		}))
	}
	return nil
}

func (l *wheel) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for _, x := range l.timers {
		x.Stop()
	}
}

// graveyard stands for the topic triggers-dlq.
type graveyard struct {
	mu   sync.Mutex
	recs []DeadRecord
}

func (g *graveyard) Append(_ context.Context, rs []DeadRecord) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recs = append(g.recs, rs...)
	return nil
}

func (g *graveyard) of(id string) (out []DeadLetter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.recs {
		if string(r.Key) == id {
			var l DeadLetter
			if err := json.Unmarshal(r.Value, &l); err != nil {
				panic(err)
			}
			out = append(out, l)
		}
	}
	return out
}

// plant has everything around a Service and a Dispatcher, in memory.
type plant struct {
	t     testing.TB
	store *memory.Store
	queue engine.Queue
	wheel *wheel
	dead  *graveyard
	sink  *receivers
	svc   *Service
	cfg   DispatcherConfig
	scfg  Config
	evs   *tallies
}

// tallies counts events.
type tallies struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tallies) add(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[what] += n
}

func (c *tallies) get(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[what]
}

func (c *tallies) events() Events {
	return Events{
		Created:      func(_ string, n int) { c.add("created", n) },
		Ended:        func(_ string, s engine.TriggerState, _ string) { c.add(StateName(s), 1) },
		Attempt:      func(_, class string, _ time.Duration) { c.add("attempt "+class, 1) },
		Deferred:     func(cause string, n int) { c.add("deferred "+cause, n) },
		ClaimLost:    func(n int) { c.add("claim lost", n) },
		Dropped:      func(cause string, n int) { c.add("dropped "+cause, n) },
		Swapped:      func(n int) { c.add("swaps", n) },
		DeadLettered: func(n int) { c.add("dead letters", n) },
		Late: func(_ string, d time.Duration) {
			if d < 0 {
				c.add("early", 1)
			}
		},
	}
}

func testEgress(t testing.TB) *Egress {
	t.Helper()
	e, err := NewEgress(EgressConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func base(caller string) string { return "https://" + caller + ".example/hooks/" }

// newPlant starts no dispatcher. The callers have the base URL https://<caller>.example/hooks/.
func newPlant(t testing.TB, change func(*DispatcherConfig), callers ...string) *plant {
	t.Helper()
	p := &plant{t: t, store: memory.New(), dead: &graveyard{}, sink: &receivers{byID: map[string]int{}}, evs: &tallies{n: map[string]int{}}}
	p.queue = newHeapQueue(10)
	p.wheel = &wheel{store: p.store.Timers(), publish: ToQueue(p.queue), met: map[metRow]struct{}{}}
	t.Cleanup(p.wheel.stop)
	for _, id := range append(callers, "shop") {
		p.putCaller(engine.Caller{ID: id, CallbackURLs: []string{base(id)}})
	}
	census := NewCensus(p.store.Triggers(), false)
	p.scfg = Config{
		Triggers: p.store.Triggers(), Callers: p.store.Callers(), Idem: p.store.Idem(), Later: p.wheel,
		Egress: testEgress(t), Census: census, Events: p.evs.events(),
	}
	var err error
	if p.svc, err = New(p.scfg); err != nil {
		t.Fatal(err)
	}
	p.cfg = DispatcherConfig{
		Triggers: p.store.Triggers(), Callers: p.store.Callers(), Queue: p.queue, Later: p.wheel, Dead: p.dead,
		Egress: p.scfg.Egress, Census: census, Events: p.evs.events(), post: p.sink.post,
	}
	if change != nil {
		change(&p.cfg)
	}
	return p
}

var testSecret = NewSecret()

func (p *plant) putCaller(c engine.Caller) {
	p.t.Helper()
	old, _, err := p.store.Callers().Get(context.Background(), c.ID)
	if err == nil {
		c.Version = old.Version
		if c.Secrets == nil {
			c.Secrets = []engine.CallerSecret{{Secret: testSecret}}
		}
		err = p.store.Callers().Put(context.Background(), c)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// run starts a dispatcher; the returned function stops it.
func (p *plant) run() (d *Dispatcher, stop func()) {
	p.t.Helper()
	d, err := NewDispatcher(p.cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := d.Run(ctx); err != nil {
			p.t.Error(err)
		}
	}()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); <-done }) }
	p.t.Cleanup(stop)
	return d, stop
}

// create registers a trigger of a caller and returns its id. The text extra is the JSON that
// follows the URL, e.g. `"delay_seconds":5`.
func (p *plant) create(caller, extra string) string {
	p.t.Helper()
	id, err := p.tryCreate(p.svc, caller, extra, "")
	if err != nil {
		p.t.Fatal(err)
	}
	return id
}

func (p *plant) tryCreate(s *Service, caller, extra, key string) (string, error) {
	body := fmt.Sprintf(`{"callback_url":"%sx",%s}`, base(caller), extra)
	a, err := s.Register(context.Background(), request.Meta{Caller: caller, Route: "POST /v1/triggers", Key: key}, []byte(body))
	if err != nil {
		return "", err
	}
	var out struct {
		ID string `json:"trigger_id"`
	}
	if err := json.Unmarshal(a.Body, &out); err != nil {
		p.t.Fatalf("%s: %v", a.Body, err)
	}
	return out.ID, nil
}

func (p *plant) row(id string) engine.Trigger {
	p.t.Helper()
	row, err := p.svc.Find(context.Background(), id)
	if err != nil {
		p.t.Fatal(err)
	}
	return row
}

func (p *plant) want(id string, state engine.TriggerState) engine.Trigger {
	p.t.Helper()
	row := p.row(id)
	if row.State != state {
		p.t.Fatalf("%s is %s (%s), want %s", id, StateName(row.State), row.Reason, StateName(state))
	}
	return row
}

// pass waits for d, and then until all goroutines wait.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func refused(t testing.TB, err error, kind notify.Kind, code, field string) {
	t.Helper()
	e, is := err.(*notify.Error)
	if !is || e.Kind != kind || e.Code != code || e.Field != field {
		t.Errorf("error %#v, want kind %v, code %q, field %q", err, kind, code, field)
	}
}

func prefixes(ps ...string) (out []netip.Prefix) {
	for _, p := range ps {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}
