package provider

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

// If all streams are taken, a code gets the next free one, before bulk pushes that have waited
// longer. This holds for each client.
func TestCodesAreGivenStreamsBeforeBulk(t *testing.T) {
	withPushers(t, testCodesAreGivenStreamsBeforeBulk)
}

func testCodesAreGivenStreamsBeforeBulk(t *testing.T, start func(e Endpoint, n int) pusher) {
	came, release := make(chan string, 100), make(chan struct{}, 100)
	_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		came <- r.URL.Path + string(body)
		<-release
		io.WriteString(w, `{"name":"projects/demo/messages/0:7"}`)
	}), func(s *httptest.Server) { s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 2} })
	c := start(e, 1)
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
	waitFor(t, "47 wait", func() bool { return c.pool.Stats().Waiting == 47 })
	code := strings.Repeat("c0de", 16)
	send(notify.OTP, 1, func(int) string { return code })
	waitFor(t, "the code waits", func() bool { return c.pool.Stats().Waiting == 48 })
	release <- struct{}{}
	if next := <-came; !strings.Contains(next, code) {
		t.Errorf("the next push was %s, not the code", next)
	}
	close(release)
	calls.Wait()
}
