package provider

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// What HTTP/2 asks of a client, against the simulated APNs.

// apnsWorld is a client and the simulator it calls.
type apnsWorld struct {
	*APNs
	sim *simulator.Simulator
}

func newAPNsWorld(t *testing.T, cfg simulator.APNsConfig, change func(*APNsConfig)) *apnsWorld {
	t.Helper()
	sim, err := simulator.New(simulator.Config{APNs: cfg})
	if err != nil {
		t.Fatal(err)
	}
	run(t, sim)
	cred := sim.Credentials().APNs
	key, err := ParseAPNsKey([]byte(cred.KeyPEM))
	if err != nil {
		t.Fatal(err)
	}
	a := testAPNs(t, Endpoint{BaseURL: sim.URLs().APNs, RootCAs: sim.CAPool(), Timeout: time.Minute, DialTimeout: time.Minute}, func(c *APNsConfig) {
		c.TeamID, c.KeyID, c.Key, c.Topic, c.Connections = cred.TeamID, cred.KeyID, key, cred.Topic, 1
		if change != nil {
			change(c)
		}
	})
	return &apnsWorld{a, sim}
}

func pushesTo(n int) *notify.Call {
	return testCall(notify.Push, notify.Content{Title: "T", Body: "A text of some length."}, n, func(i int) string { return "apns:" + simulator.DeviceToken(uint64(i)) })
}

func (w *apnsWorld) rule(t *testing.T, r simulator.Rule) (remove func()) {
	t.Helper()
	r.Provider = simulator.APNs
	added, err := w.sim.AddRule(r)
	if err != nil {
		t.Fatal(err)
	}
	return func() { w.sim.RemoveRule(added.Number) }
}

func (w *apnsWorld) set(t *testing.T, wire simulator.Wire) {
	t.Helper()
	if err := w.sim.SetAPNsWire(wire); err != nil {
		t.Fatal(err)
	}
}

// accepts sends n pushes, which must all be accepted, and each be delivered once.
func (w *apnsWorld) accepts(t *testing.T, n int) {
	t.Helper()
	call := pushesTo(n)
	base := notify.NewBase(time.Now())
	for i := range call.Items {
		call.Items[i].Key = &notify.RowKey{Chunk: notify.Chunk{Base: base}}
	}
	allClass(t, collect(t, t.Context(), w, call), notify.ClassAccepted)
	if r := w.sim.Ledger().Base(base, uint32(n)); r.IDs != uint64(n) || r.MissingN != 0 || r.Duplicates != 0 {
		t.Fatalf("%+v", r)
	}
}

// one sends a push and returns its result.
func (w *apnsWorld) one(t *testing.T, ctx context.Context) notify.Result {
	t.Helper()
	return collect(t, ctx, w, pushesTo(1))[0]
}

// waitFor polls, because the other side gives no signal.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(began) > 2*time.Minute {
			t.Fatal("it did not come to pass: " + what)
		}
	}
}

// sending starts n pushes and returns how to wait for them.
func (w *apnsWorld) sending(t *testing.T, ctx context.Context, n int) (done func() []notify.Result) {
	out := make(chan []notify.Result, 1)
	go func() { out <- collect(t, ctx, w, pushesTo(n)) }()
	return func() []notify.Result { return <-out }
}

// clean checks that neither side broke the protocol.
func (w *apnsWorld) clean(t *testing.T, opened uint64) {
	t.Helper()
	if _, s := w.sim.APNsWire(); s.Over != 0 || s.Broken != 0 || s.Opened != opened {
		t.Errorf("%+v, want %d opened", s, opened)
	}
}

// A connection begins with one stream and gets more with the first accepted
// token; the limit is followed up, down to none, and up again.
func TestConformSettings(t *testing.T) {
	t.Parallel()
	w := newAPNsWorld(t, simulator.APNsConfig{FirstStreams: 1, Streams: 50, Latency: simulator.Constant(time.Millisecond)}, func(c *APNsConfig) { c.Connections = 3 })
	w.accepts(t, 2000)
	w.set(t, simulator.Wire{Streams: 5})
	w.accepts(t, 200)
	w.set(t, simulator.Wire{Streams: 100})
	w.accepts(t, 2000)
	w.set(t, simulator.Wire{Streams: -1})
	waitFor(t, "the client knows", func() bool { return w.pool.Stats().Streams == 0 })
	done := w.sending(t, t.Context(), 20)
	waitFor(t, "all wait", func() bool { return w.pool.Stats().Waiting == 20 })
	w.set(t, simulator.Wire{Streams: 7})
	allClass(t, done(), notify.ClassAccepted)
	w.clean(t, 3)
}

// Bodies wait for the windows of their streams, whatever becomes of them.
func TestConformFlowControl(t *testing.T) {
	t.Parallel()
	w := newAPNsWorld(t, simulator.APNsConfig{}, nil)
	w.accepts(t, 10)
	w.set(t, simulator.Wire{Window: 7})
	w.accepts(t, 100)
	w.accepts(t, 100)
	_, before := w.sim.APNsWire()
	if before.Updates < 1000 {
		t.Errorf("%d windows were given back: the bodies did not wait", before.Updates)
	}
	// No window at all: headers go out, bodies wait until it is opened.
	w.set(t, simulator.Wire{Window: -1})
	waitFor(t, "the client knows", func() bool { _, s := w.sim.APNsWire(); return s.Acked == 3 })
	done := w.sending(t, t.Context(), 20)
	waitFor(t, "all are under way", func() bool { return w.pool.Stats().InFlight == 20 })
	w.set(t, simulator.Wire{Window: 20})
	w.set(t, simulator.Wire{})
	allClass(t, done(), notify.ClassAccepted)
	w.clean(t, 1)
}

// The table of HPACK may shrink, vanish and grow.
func TestConformHeaderTable(t *testing.T) {
	t.Parallel()
	w := newAPNsWorld(t, simulator.APNsConfig{}, nil)
	for _, size := range []int{0, -1, 100, 300, 4096, 64, 65536, -1, 0} {
		w.set(t, simulator.Wire{HeaderTable: size})
		w.accepts(t, 30)
		w.accepts(t, 30)
	}
	w.clean(t, 1)
}

// After a GOAWAY, pushes that were begun are answered and the others use another connection.
// Nothing is sent twice.
func TestConformGoAway(t *testing.T) {
	t.Parallel()
	w := newAPNsWorld(t, simulator.APNsConfig{Streams: 100, Latency: simulator.Constant(2 * time.Millisecond)}, nil)
	for range 3 {
		w.rule(t, simulator.Rule{Do: simulator.GoAway, Count: 1, Rate: 0.02})
		w.accepts(t, 500)
	}
	waitFor(t, "the old connections are gone", func() bool { _, s := w.sim.APNsWire(); return s.Open == 1 })
	if _, s := w.sim.APNsWire(); s.GoAways < 2 || s.Opened != s.GoAways+1 {
		t.Errorf("%+v", s)
	}
}

// A refused stream is tried again at once; a server that always refuses is
// believed in the end.
func TestConformRefused(t *testing.T) {
	t.Parallel()
	w := newAPNsWorld(t, simulator.APNsConfig{}, nil)
	w.accepts(t, 1)
	defer w.rule(t, simulator.Rule{Do: simulator.Refuse, Count: 2})()
	if r := w.one(t, t.Context()); r.Class != notify.ClassAccepted {
		t.Errorf("refused twice: %+v", r)
	}
	w.rule(t, simulator.Rule{Do: simulator.Refuse})
	if r := w.one(t, t.Context()); r.Class != notify.ClassUnavailable || r.Code != "stream_refused" {
		t.Errorf("%+v", r)
	}
	if _, s := w.sim.APNsWire(); s.Refused != 5 {
		t.Errorf("%+v", s)
	}
	w.clean(t, 1)
}

// A push that was sent and lost its answer is ambiguous, however the answer was lost.
func TestConformLost(t *testing.T) {
	t.Parallel()
	w := newAPNsWorld(t, simulator.APNsConfig{}, nil)
	for _, do := range []simulator.Action{simulator.ResetStream, simulator.Reset, simulator.CloseConn} {
		w.accepts(t, 3)
		remove := w.rule(t, simulator.Rule{Do: do})
		if r := w.one(t, t.Context()); r.Class != notify.ClassAmbiguous || r.Code != "connection_lost" || r.Provider != "apns" {
			t.Errorf("%s: %+v", do, r)
		}
		remove()
	}
	w.accepts(t, 3)
}

// A line that fell silent is found out by PING, long before the push times out.
func TestConformPing(t *testing.T) {
	t.Parallel()
	w := newAPNsWorld(t, simulator.APNsConfig{}, func(c *APNsConfig) {
		c.Endpoint.Timeout, c.Endpoint.pingAfter, c.Endpoint.pingTimeout = 10*time.Minute, 100*time.Millisecond, 5*time.Second
	})
	waitFor(t, "a PING is answered", func() bool { _, s := w.sim.APNsWire(); return s.Pings > 2 })
	w.accepts(t, 10)
	_, before := w.sim.APNsWire()
	w.set(t, simulator.Wire{Silent: true})
	if r := w.one(t, t.Context()); r.Class != notify.ClassAmbiguous || r.Code != "connection_lost" {
		t.Errorf("%+v", r)
	}
	w.set(t, simulator.Wire{})
	w.accepts(t, 10)
	if _, s := w.sim.APNsWire(); s.Opened <= before.Opened {
		t.Errorf("%+v", s)
	}
}

// Answers are understood, with the time they name.
func TestConformAnswers(t *testing.T) {
	t.Parallel()
	w := newAPNsWorld(t, simulator.APNsConfig{}, nil)
	w.accepts(t, 1)
	f := func(r simulator.Rule, class notify.Class, code string, after time.Duration) {
		t.Helper()
		remove := w.rule(t, r)
		got := w.one(t, t.Context())
		remove()
		if got.Class != class || got.Code != code || got.RetryAfter != after || got.Provider != "apns" {
			t.Errorf("%+v: %+v", r, got)
		}
	}
	s := func(n int) simulator.Duration { return simulator.Duration(time.Duration(n) * time.Second) }
	f(simulator.Rule{Do: simulator.Fail, Code: "Unregistered"}, notify.ClassDeadAddress, "apns_unregistered", 0)
	f(simulator.Rule{Do: simulator.Fail, Code: "TooManyRequests", RetryAfter: s(7)}, notify.ClassRetry, "apns_too_many_requests", 7*time.Second)
	f(simulator.Rule{Do: simulator.Outage, RetryAfter: s(11)}, notify.ClassUnavailable, "apns_service_unavailable", 11*time.Second)
	f(simulator.Rule{Do: simulator.Fail, Code: "BadTopic"}, notify.ClassPermanent, "apns_bad_topic", 0)
	f(simulator.Rule{Do: simulator.Delay, Latency: simulator.Constant(300 * time.Millisecond)}, notify.ClassAccepted, "", 0)
	f(simulator.Rule{Do: simulator.Drip, Latency: simulator.Constant(100 * time.Millisecond)}, notify.ClassAccepted, "", 0)
	// The service asks for another connection.
	f(simulator.Rule{Do: simulator.Fail, Code: "Shutdown"}, notify.ClassUnavailable, "apns_shutdown", 0)
	w.accepts(t, 1)
	waitFor(t, "the old connection is gone", func() bool { _, s := w.sim.APNsWire(); return s.Open == 1 && s.Opened == 2 })
	// Refused credentials: one at a time until they are accepted again.
	f(simulator.Rule{Do: simulator.Deny}, notify.ClassConfig, "apns_invalid_provider_token", 0)
	if c := w.pool.Stats(); c.Streams != 1 {
		t.Errorf("%+v", c)
	}
	w.accepts(t, 10)
	// A throttled account holds everybody back.
	f(simulator.Rule{Do: simulator.Fail, Code: "TooManyProviderTokenUpdates", RetryAfter: s(3600)}, notify.ClassThrottled, "apns_too_many_provider_token_updates", time.Hour)
	before := w.sim.Ledger().Summary().Requests
	if r := w.one(t, t.Context()); r.Class != notify.ClassThrottled || r.RetryAfter < 50*time.Minute {
		t.Errorf("held: %+v", r)
	}
	if now := w.sim.Ledger().Summary().Requests; !reflect.DeepEqual(now, before) {
		t.Error("it was sent all the same")
	}
}
