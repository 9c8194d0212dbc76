package provider

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// A code that meets taken streams gets the next one that is free, before the bulk pushes
// that have waited longer: with each client.
func TestCodesAreGivenStreamsBeforeBulk(t *testing.T) {
	t.Parallel()
	type client interface {
		Sender
		Connections() Connections
	}
	fcm := func(t *testing.T, e Endpoint) client {
		f, err := NewFCM(FCMConfig{Endpoint: e, Project: "demo", Email: "svc@demo.iam", Key: testRSAKey, KeyID: "kid1", TokenURL: e.BaseURL + "/token",
			Connections: 1, Stagger: time.Millisecond, BackoffMin: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		run(t, f)
		return f
	}
	apns := func(c APNsClient) func(t *testing.T, e Endpoint) client {
		return func(t *testing.T, e Endpoint) client {
			return testAPNs(t, c, e, func(c *APNsConfig) { c.Connections = 1 })
		}
	}
	for name, start := range map[string]func(t *testing.T, e Endpoint) client{"fcm": fcm, "frames": apns(ClientFrames), "net": apns(ClientNetHTTP)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			came, release := make(chan string, 100), make(chan struct{}, 100)
			_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.URL.Path == "/token" {
					io.WriteString(w, `{"access_token":"tok","expires_in":3599,"token_type":"Bearer"}`)
					return
				}
				came <- r.URL.Path + string(body)
				<-release
				io.WriteString(w, `{"name":"projects/demo/messages/0:7"}`)
			}), func(s *httptest.Server) { s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 2} })
			c := start(t, e)
			var calls sync.WaitGroup
			send := func(cat notify.Category, n int, address func(int) string) {
				call := testCall(notify.Push, notify.Content{Body: "b"}, n, address)
				call.Category = cat
				calls.Go(func() { allClass(t, collect(t, t.Context(), c, call), notify.ClassAccepted) })
			}
			send(notify.Marketing, 50, func(i int) string { return fmt.Sprintf("%064x", i) })
			<-came // alone, for the connection is not proven
			release <- struct{}{}
			<-came
			<-came
			waitFor(t, "47 wait", func() bool { return c.Connections().Waiting == 47 })
			code := strings.Repeat("c0de", 16)
			send(notify.OTP, 1, func(int) string { return code })
			waitFor(t, "the code waits", func() bool { return c.Connections().Waiting == 48 })
			release <- struct{}{}
			if next := <-came; !strings.Contains(next, code) {
				t.Errorf("the next push was %s, not the code", next)
			}
			close(release)
			calls.Wait()
		})
	}
}

// All streams of 50 ms are taken, and nine times as many bulk pushes wait for one: as with
// FCM's 1,000 streams and workers.push.in_flight 10,000, here a tenth of both. A code waits
// for the next free stream. In the order of arrival it took 500 ms.
func TestCodesDoNotWaitForBulk(t *testing.T) {
	t.Parallel()
	poolTest(t, 10, &fakeServer{latency: 50 * time.Millisecond, max: 10}, func(t *testing.T, p *connPool) {
		time.Sleep(20 * time.Second) // all are open
		many(t, p, 100)              // and proven
		ctx, stop := context.WithCancel(t.Context())
		var bulk sync.WaitGroup
		for range 1000 {
			bulk.Go(func() {
				for ctx.Err() == nil {
					use(ctx, p, notify.Marketing)
				}
			})
		}
		time.Sleep(time.Second)
		began := time.Now()
		if lost := use(t.Context(), p, notify.OTP); lost != nil {
			t.Errorf("%+v", lost)
		}
		took := time.Since(began)
		t.Logf("a code took %v behind %d bulk pushes", took, p.state().Waiting)
		if took > 150*time.Millisecond {
			t.Errorf("a code took %v", took)
		}
		stop()
		bulk.Wait()
	})
}
