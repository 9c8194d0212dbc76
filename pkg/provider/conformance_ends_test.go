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

// A caller that stops waiting learns for each push whether the server may have processed it.
func TestConformCancel(t *testing.T) {
	t.Parallel()
	w := newAPNsWorld(t, simulator.APNsConfig{Streams: 10}, nil)
	w.accepts(t, 1)
	remove := w.rule(t, simulator.Rule{Do: simulator.Hang})
	hung := func() bool { return len(w.sim.Inbox()) >= 10 && w.pool.Stats().Waiting > 0 }
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
	if c := w.pool.Stats(); c.InFlight != 0 || c.Waiting != 0 {
		t.Errorf("%+v", c)
	}
	w.accepts(t, 30)
	w.clean(t, 1)
}

// An answer with a body above the limit does no harm.
func TestConformLargeAnswers(t *testing.T) {
	t.Parallel()
	_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(strings.TrimLeft(strings.TrimPrefix(r.URL.Path, "/3/device/"), "0"))
		io.Copy(io.Discard, r.Body)
		if size > 0 {
			w.WriteHeader(500)
			io.WriteString(w, `{"reason":"InternalServerError","x":"`+strings.Repeat("x", size)+`"}`)
		}
	}), nil)
	a := testAPNs(t, e, func(c *APNsConfig) { c.Connections = 1 })
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
	if c := a.pool.Stats(); c.Open != 1 || c.InFlight != 0 {
		t.Errorf("%+v", c)
	}
}

// A server that cannot be reached, or has the wrong identity, is reported as no connection.
func TestConformUnreachable(t *testing.T) {
	t.Parallel()
	s, e := tlsServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request came") }), nil)
	_, old := tlsServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request came") }), func(s *httptest.Server) { s.EnableHTTP2 = false })
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mute.Close() })
	wrong := e
	wrong.RootCAs = x509.NewCertPool()
	for what, e := range map[string]Endpoint{
		"refused":   {BaseURL: "https://127.0.0.1:1"},
		"wrong CA":  wrong,
		"no h2":     old,
		"says none": {BaseURL: "https://" + mute.Addr().String(), DialTimeout: 50 * time.Millisecond},
		"not TLS":   {BaseURL: "http://" + s.Listener.Addr().String(), DialTimeout: 50 * time.Millisecond},
	} {
		a := testAPNs(t, e, nil)
		for _, r := range collect(t, t.Context(), a, testCall(notify.Push, notify.Content{Body: "b"}, 3, deviceToken)) {
			if r.Class != notify.ClassUnavailable || r.Code != "no_connection" {
				t.Errorf("%s: %+v", what, r)
			}
		}
	}
}

// After Run has ended nothing is sent, and waiting pushes are told so. Pushes under way are
// waited for.
func TestConformStop(t *testing.T) {
	t.Parallel()
	w := newAPNsWorld(t, simulator.APNsConfig{Latency: simulator.Constant(300 * time.Millisecond), Streams: 10}, nil)
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
	waitFor(t, "some are under way", func() bool { c := b.pool.Stats(); return c.InFlight == 10 && c.Waiting == 20 })
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
