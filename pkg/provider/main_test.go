package provider

import (
	"context"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testBase = notify.Base{0x01, 0x8f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}

// testCall is a fan-out of n items to addresses made by address(i).
func testCall(ch notify.Channel, c notify.Content, n int, address func(i int) string) *notify.Call {
	call := &notify.Call{Channel: ch, Category: notify.Transactional, Caller: "shop", Content: &c}
	key := &notify.RowKey{Chunk: notify.Chunk{Base: testBase, Partition: 3, Block: 1}, Epoch: 2}
	for i := range n {
		call.Items = append(call.Items, notify.Item{
			Key: key, Index: uint32(i), FanOut: true, User: []byte("u"), Address: []byte(address(i)),
		})
	}
	return call
}

// collect sends the call and returns the results by item; it fails the test
// unless every item was reported exactly once.
func collect(t testing.TB, ctx context.Context, s Sender, call *notify.Call) []notify.Result {
	t.Helper()
	var mu sync.Mutex
	out := make([]notify.Result, len(call.Items))
	times := make([]int, len(call.Items))
	s.Send(ctx, call, notify.Each(func(i int, r notify.Result) {
		mu.Lock()
		defer mu.Unlock()
		out[i] = r
		times[i]++
	}))
	mu.Lock()
	defer mu.Unlock()
	for i, n := range times {
		if n != 1 {
			t.Fatalf("item %d was reported %d times", i, n)
		}
	}
	return out
}

// run runs a client until the test ends.
func run(t testing.TB, r interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func tlsServer(t testing.TB, h http.Handler, change func(*httptest.Server)) (*httptest.Server, Endpoint) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // connections cut on purpose
	if change != nil {
		change(s)
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s, Endpoint{BaseURL: s.URL, RootCAs: roots}
}

func testPushConfig(e Endpoint) PushConfig {
	return PushConfig{Endpoint: e, Stagger: time.Millisecond, BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond}
}

// pusher is the client of APNs or of FCM.
type pusher struct {
	*pushClient
	client any // *APNs or *FCM
}

// withPushers runs f for both. start starts a client with n connections.
func withPushers(t *testing.T, f func(t *testing.T, start func(e Endpoint, n int) pusher)) {
	t.Parallel()
	t.Run("apns", func(t *testing.T) {
		t.Parallel()
		f(t, func(e Endpoint, n int) pusher {
			a := testAPNs(t, e, func(c *APNsConfig) { c.Connections = n })
			return pusher{a.pushClient, a}
		})
	})
	t.Run("fcm", func(t *testing.T) {
		t.Parallel()
		tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"access_token":"tok","expires_in":3599,"token_type":"Bearer"}`)
		}))
		t.Cleanup(tokens.Close)
		f(t, func(e Endpoint, n int) pusher {
			cfg := FCMConfig{PushConfig: testPushConfig(e), TokenURL: tokens.URL}
			cfg.Connections = n
			c := startFCM(t, cfg)
			return pusher{c.pushClient, c}
		})
	})
}

// sleep waits and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
