package provider

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// rawServer accepts one connection and hands it to serve.
func rawServer(t *testing.T, serve func(c net.Conn)) *url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	u, _ := url.Parse("http://" + l.Addr().String())
	return u
}

func TestAmbiguity(t *testing.T) {
	t.Parallel()
	payload := make([]byte, 8<<20) // more than socket buffers hold
	f := func(u *url.URL, body []byte, timeout time.Duration, ctx context.Context, class notify.Class, code string) {
		t.Helper()
		e := Endpoint{BaseURL: u.String()}.withDefaults("", timeout)
		rt := e.transport()
		defer rt.CloseIdleConnections()
		a, fail := exchange(ctx, rt, timeout, u, http.Header{}, body)
		if fail == nil {
			t.Fatalf("answered %d", a.status)
		}
		if fail.class != class || fail.code != code {
			t.Errorf("got %v %s, want %v %s", fail.class, fail.code, class, code)
		}
	}
	readAll := func(c net.Conn) {
		if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.Copy(io.Discard, r.Body)
		}
	}

	nobody, _ := url.Parse("http://127.0.0.1:1")
	f(nobody, payload[:100], time.Second, t.Context(), notify.ClassUnavailable, "connection_failed")

	// It read everything, and cut the line: it may have taken it.
	u := rawServer(t, readAll)
	f(u, payload[:100], time.Minute, t.Context(), notify.ClassAmbiguous, "connection_lost")
	f(u, payload, time.Minute, t.Context(), notify.ClassAmbiguous, "connection_lost")

	// It cut the line after a part: it cannot have taken it.
	u = rawServer(t, func(c net.Conn) { io.ReadFull(c, make([]byte, 1000)) })
	f(u, payload, time.Minute, t.Context(), notify.ClassUnavailable, "connection_failed")

	// It reads and never answers.
	hang := make(chan struct{})
	defer close(hang)
	u = rawServer(t, func(c net.Conn) { readAll(c); <-hang })
	f(u, payload[:100], 5*time.Second, t.Context(), notify.ClassAmbiguous, "timeout")

	// It never reads, and the body is larger than what fits on the way.
	u = rawServer(t, func(c net.Conn) { <-hang })
	f(u, payload, 50*time.Millisecond, t.Context(), notify.ClassUnavailable, "timeout")

	// The caller gives up: before, and after it was written.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	f(u, payload[:100], time.Second, gone, notify.ClassRetry, "cancelled")
	ctx, cancel := context.WithCancel(t.Context())
	u = rawServer(t, func(c net.Conn) { readAll(c); cancel(); <-hang })
	f(u, payload[:100], 10*time.Second, ctx, notify.ClassAmbiguous, "cancelled")
}

// A request that was sealed can never be completed, whatever the transport
// still does with its body.
func TestSeal(t *testing.T) {
	t.Parallel()
	r := newRequest([]byte("0123456789"))
	b, err := r.open()
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := b.Read(make([]byte, 9)); n != 9 {
		t.Fatal(n)
	}
	if r.seal() {
		t.Error("sent without its last byte")
	}
	if _, err := b.Read(make([]byte, 9)); !errors.Is(err, errSealed) {
		t.Errorf("read on after the seal: %v", err)
	}
	if _, err := r.open(); !errors.Is(err, errSealed) {
		t.Errorf("opened again after the seal: %v", err)
	}
	r = newRequest([]byte("0123456789"))
	b, _ = r.open()
	io.ReadAll(b)
	if !r.seal() {
		t.Error("not sent with its last byte")
	}
}

func TestAnswerIsBounded(t *testing.T) {
	t.Parallel()
	_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 1 << 10 {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	}), nil)
	e = e.withDefaults("", time.Minute)
	rt := e.transport()
	defer rt.CloseIdleConnections()
	u, _ := url.Parse(e.BaseURL)
	a, fail := exchange(t.Context(), rt, time.Minute, u, http.Header{}, []byte("x"))
	if fail != nil || len(a.body) != maxAnswer {
		t.Errorf("%v, %d bytes", fail, len(a.body))
	}
}
