package provider

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// The suite that both ways to speak HTTP/2 pass, against the simulated APNs.

// apnsWorld is a client and the simulator it calls.
type apnsWorld struct {
	*APNs
	sim *simulator.Simulator
}

func newAPNsWorld(t *testing.T, client APNsClient, cfg simulator.APNsConfig, change func(*APNsConfig)) *apnsWorld {
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
	a := testAPNs(t, client, Endpoint{BaseURL: sim.URLs().APNs, RootCAs: sim.CAPool(), Timeout: time.Minute, DialTimeout: time.Minute}, func(c *APNsConfig) {
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

// waitFor polls: what happens on the other side gives no signal.
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

// clean checks that nobody broke the protocol.
func (w *apnsWorld) clean(t *testing.T, opened uint64) {
	t.Helper()
	if _, s := w.sim.APNsWire(); s.Over != 0 || s.Broken != 0 || s.Opened != opened {
		t.Errorf("%+v, want %d opened", s, opened)
	}
}

// A connection begins with one stream and gets more with the first accepted
// token; the limit is followed up, down to none, and up again.
func TestConformSettings(t *testing.T) { withClients(t, testConformSettings) }

func testConformSettings(t *testing.T, client APNsClient) {
	w := newAPNsWorld(t, client, simulator.APNsConfig{FirstStreams: 1, Streams: 50, Latency: simulator.Constant(time.Millisecond)}, func(c *APNsConfig) { c.Connections = 3 })
	w.accepts(t, 2000)
	w.set(t, simulator.Wire{Streams: 5})
	w.accepts(t, 200)
	w.set(t, simulator.Wire{Streams: 100})
	w.accepts(t, 2000)
	if client == ClientNetHTTP {
		// Its *ClientConn does not tell a limit of none from a GOAWAY: the
		// connection is replaced.
		w.clean(t, 3)
		return
	}
	w.set(t, simulator.Wire{Streams: -1})
	waitFor(t, "the client knows", func() bool { return w.Connections().Streams == 0 })
	done := w.sending(t, t.Context(), 20)
	waitFor(t, "all wait", func() bool { return w.Connections().Waiting == 20 })
	w.set(t, simulator.Wire{Streams: 7})
	allClass(t, done(), notify.ClassAccepted)
	w.clean(t, 3)
}

// Bodies wait for the windows of their streams, whatever becomes of them.
func TestConformFlowControl(t *testing.T) { withClients(t, testConformFlowControl) }

func testConformFlowControl(t *testing.T, client APNsClient) {
	w := newAPNsWorld(t, client, simulator.APNsConfig{}, nil)
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
	waitFor(t, "all are under way", func() bool { return w.Connections().InFlight == 20 })
	w.set(t, simulator.Wire{Window: 20})
	w.set(t, simulator.Wire{})
	allClass(t, done(), notify.ClassAccepted)
	w.clean(t, 1)
}

// The table of HPACK may shrink, vanish and grow.
func TestConformHeaderTable(t *testing.T) { withClients(t, testConformHeaderTable) }

func testConformHeaderTable(t *testing.T, client APNsClient) {
	w := newAPNsWorld(t, client, simulator.APNsConfig{}, nil)
	for _, size := range []int{0, -1, 100, 300, 4096, 64, 65536, -1, 0} {
		w.set(t, simulator.Wire{HeaderTable: size})
		w.accepts(t, 30)
		w.accepts(t, 30)
	}
	w.clean(t, 1)
}

// After a GOAWAY what was begun is answered and the rest goes elsewhere; nothing
// is sent twice.
func TestConformGoAway(t *testing.T) { withClients(t, testConformGoAway) }

func testConformGoAway(t *testing.T, client APNsClient) {
	w := newAPNsWorld(t, client, simulator.APNsConfig{Streams: 100, Latency: simulator.Constant(2 * time.Millisecond)}, nil)
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
func TestConformRefused(t *testing.T) { withClients(t, testConformRefused) }

func testConformRefused(t *testing.T, client APNsClient) {
	w := newAPNsWorld(t, client, simulator.APNsConfig{}, nil)
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

// What was sent and lost its answer is ambiguous, however it was lost.
func TestConformLost(t *testing.T) { withClients(t, testConformLost) }

func testConformLost(t *testing.T, client APNsClient) {
	w := newAPNsWorld(t, client, simulator.APNsConfig{}, nil)
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
func TestConformPing(t *testing.T) { withClients(t, testConformPing) }

func testConformPing(t *testing.T, client APNsClient) {
	w := newAPNsWorld(t, client, simulator.APNsConfig{}, func(c *APNsConfig) {
		c.Endpoint.Timeout, c.Endpoint.pingAfter, c.Endpoint.pingTimeout = 10*time.Minute, 100*time.Millisecond, time.Second
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
func TestConformAnswers(t *testing.T) { withClients(t, testConformAnswers) }

func testConformAnswers(t *testing.T, client APNsClient) {
	w := newAPNsWorld(t, client, simulator.APNsConfig{}, nil)
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
	if c := w.Connections(); c.Streams != 1 {
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

// Whoever stops waiting learns what may have become of each push.
func TestConformCancel(t *testing.T) { withClients(t, testConformCancel) }

func testConformCancel(t *testing.T, client APNsClient) {
	w := newAPNsWorld(t, client, simulator.APNsConfig{Streams: 10}, nil)
	w.accepts(t, 1)
	remove := w.rule(t, simulator.Rule{Do: simulator.Hang})
	hung := func() bool { return len(w.sim.Inbox()) >= 10 && w.Connections().Waiting > 0 }
	ctx, cancel := context.WithCancel(t.Context())
	seen := w.sim.Rules()[0].Picked
	done := w.sending(t, ctx, 30)
	waitFor(t, "ten are under way, the rest wait", func() bool { return w.sim.Rules()[0].Picked-seen == 10 && hung() })
	cancel()
	count := map[string]int{}
	for _, r := range done() {
		count[fmt.Sprint(r.Class, " ", r.Code)]++
	}
	if want := map[string]int{"ambiguous cancelled": 10, "retry cancelled": 20}; !reflect.DeepEqual(count, want) {
		t.Errorf("%v, want %v", count, want)
	}
	// The deadline of the call is a timeout for what was sent.
	seen = w.sim.Rules()[0].Picked
	for wait := time.Second; ; wait *= 4 { // the machine may be slow
		ctx, cancel = context.WithTimeout(t.Context(), wait)
		r := w.one(t, ctx)
		cancel()
		if w.sim.Rules()[0].Picked == seen && wait < 5*time.Minute {
			continue
		}
		if r.Class != notify.ClassAmbiguous || r.Code != "timeout" {
			t.Errorf("%+v", r)
		}
		break
	}
	remove()
	if c := w.Connections(); c.InFlight != 0 || c.Waiting != 0 {
		t.Errorf("%+v", c)
	}
	w.accepts(t, 30)
	w.clean(t, 1)
}

// A body of an answer beyond what is kept breaks nothing.
func TestConformLargeAnswers(t *testing.T) { withClients(t, testConformLargeAnswers) }

func testConformLargeAnswers(t *testing.T, client APNsClient) {
	_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(strings.TrimLeft(strings.TrimPrefix(r.URL.Path, "/3/device/"), "0"))
		io.Copy(io.Discard, r.Body)
		if size > 0 {
			w.WriteHeader(500)
			io.WriteString(w, `{"reason":"InternalServerError","x":"`+strings.Repeat("x", size)+`"}`)
		}
	}), nil)
	a := testAPNs(t, client, e, func(c *APNsConfig) { c.Connections = 1 })
	for _, size := range []int{1, 100, 60_000, 65_000, 65_499, 65_500, 70_000, 1 << 20, 3 << 20, 0, 0} {
		for i, r := range collect(t, t.Context(), a, testCall(notify.Push, notify.Content{Body: "b"}, 5, func(int) string { return fmt.Sprintf("apns:%064d", size) })) {
			switch {
			case size == 0 && r.Class != notify.ClassAccepted,
				size > 0 && size < 65_000 && r.Code != "apns_internal_server_error",
				size > 65_500 && r.Code != "http_500", // what was kept is no JSON
				size > 0 && r.Class != notify.ClassUnavailable:
				t.Errorf("%d bytes, %d: %+v", size, i, r)
			}
		}
	}
	if c := a.Connections(); c.Open != 1 || c.InFlight != 0 {
		t.Errorf("%+v", c)
	}
}

// Who cannot be reached, or is not who he should be, is no connection.
func TestConformUnreachable(t *testing.T) { withClients(t, testConformUnreachable) }

func testConformUnreachable(t *testing.T, client APNsClient) {
	s, e := tlsServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request came") }), nil)
	old, olde := tlsServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request came") }), func(s *httptest.Server) { s.EnableHTTP2 = false })
	_ = old
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mute.Close() })
	wrong := e
	wrong.RootCAs = x509.NewCertPool()
	name := e
	name.BaseURL = strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	for what, e := range map[string]Endpoint{
		"refused":   {BaseURL: "https://127.0.0.1:1"},
		"wrong CA":  wrong,
		"no h2":     olde,
		"says none": {BaseURL: "https://" + mute.Addr().String(), DialTimeout: 50 * time.Millisecond},
		"not TLS":   {BaseURL: "http://" + s.Listener.Addr().String(), DialTimeout: 50 * time.Millisecond},
	} {
		if what == "not TLS" && client == ClientNetHTTP {
			continue // it takes the first frames' absence for a slow server
		}
		a := testAPNs(t, client, e, nil)
		for _, r := range collect(t, t.Context(), a, testCall(notify.Push, notify.Content{Body: "b"}, 3, deviceToken)) {
			if r.Class != notify.ClassUnavailable || r.Code != "no_connection" {
				t.Errorf("%s: %+v", what, r)
			}
		}
	}
}

// After Run has ended nothing is sent, and what waits is told so; what was under
// way is waited for.
func TestConformStop(t *testing.T) { withClients(t, testConformStop) }

func testConformStop(t *testing.T, client APNsClient) {
	w := newAPNsWorld(t, client, simulator.APNsConfig{Latency: simulator.Constant(300 * time.Millisecond), Streams: 10}, nil)
	b, err := NewAPNs(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = b.Run(ctx) })
	allClass(t, collect(t, t.Context(), b, pushesTo(1)), notify.ClassAccepted)
	out := make(chan []notify.Result, 1)
	go func() { out <- collect(t, t.Context(), b, pushesTo(30)) }()
	waitFor(t, "some are under way", func() bool { c := b.Connections(); return c.InFlight == 10 && c.Waiting == 20 })
	cancel()
	count := map[string]int{}
	for _, r := range <-out {
		count[fmt.Sprint(r.Class, " ", r.Code)]++
	}
	if want := map[string]int{"accepted ": 10, "unavailable no_connection": 20}; !reflect.DeepEqual(count, want) {
		t.Errorf("%v, want %v", count, want)
	}
	wg.Wait()
	if r := collect(t, t.Context(), b, pushesTo(1))[0]; r.Code != "no_connection" {
		t.Errorf("%+v", r)
	}
}

// Both say the same to APNs.
func TestConformSameRequests(t *testing.T) {
	t.Parallel()
	seen := map[APNsClient]map[string]http.Header{}
	bodies := map[APNsClient]map[string]string{}
	for _, client := range []APNsClient{ClientFrames, ClientNetHTTP} {
		var mu sync.Mutex
		seen[client], bodies[client] = map[string]http.Header{}, map[string]string{}
		_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			r.Header.Del("Authorization") // each has signed his own
			key := r.Method + " " + r.URL.Path + " " + r.Header.Get("Apns-Collapse-Id") + r.Header.Get("Apns-Priority") + r.Header.Get("Apns-Push-Type")
			r.Header.Del("Content-Length")
			seen[client][key], bodies[client][key] = r.Header, string(b)
		}), nil)
		e.RootCAs = e.RootCAs.Clone()
		a := testAPNs(t, client, e, nil)
		for _, c := range []notify.Content{{Title: "T", Body: "Hi {{x}}", Variables: []byte(`{"x":1}`), CollapseKey: "k"}, {Data: []byte(`{"k":[1]}`)}, {Body: strings.Repeat("é", 1500)}} {
			for _, cat := range []notify.Category{notify.OTP, notify.Marketing} {
				call := testCall(notify.Push, c, 40, deviceToken)
				call.Category, call.Expires = cat, 1893456000123
				call.Trace, call.TraceState = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "v=x"
				allClass(t, collect(t, t.Context(), a, call), notify.ClassAccepted)
			}
		}
	}
	if !reflect.DeepEqual(seen[ClientFrames], seen[ClientNetHTTP]) || !reflect.DeepEqual(bodies[ClientFrames], bodies[ClientNetHTTP]) || len(seen[ClientFrames]) < 100 {
		for key, h := range seen[ClientFrames] {
			t.Fatalf("%s: %v, by net/http %v", key, h, seen[ClientNetHTTP][key])
		}
	}
}
