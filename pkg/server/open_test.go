package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
)

// openWorld is a server over pipes with receipts of Twilio and a page that reads
// forms.
func openWorld(t *testing.T) (*pipes, *Server, func() error) {
	ln := newPipes()
	d := newWorld().deps(t)
	d.Receipts = map[string]Receipt{"twilio": {Signature: "X-Twilio-Signature", Take: func(*http.Request, []byte) error { return nil }}}
	d.Page = func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ParseForm() != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			_, _ = io.WriteString(w, strings.Repeat("x", 4<<10)+r.PostFormValue("token"))
		})
	}
	s, err := New(Config{Listener: ln, AdminListener: newPipes()}, d)
	if err != nil {
		t.Fatal(err)
	}
	return ln, s, run(t, s)
}

// exchangeOver sends text over c and returns the answer's status and body.
func exchangeOver(t *testing.T, c net.Conn, text string) (int, string) {
	t.Helper()
	go func() { _, _ = io.WriteString(c, text) }()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Errorf("%.40q: %v", text, err)
		return 0, ""
	}
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

const (
	receiptHead = "POST /v1/receipts/twilio HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
	signedHead  = receiptHead + "X-Twilio-Signature: x\r\n"
	formHead    = "POST /ui/sign-in HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n"
	lookHead    = "GET /ui/sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
)

// Clients without a token that send their bodies slowly, as many as places for
// receipts or for the page, keep no other client out and are cut off after BodyWindow.
func TestSlowBodiesWithoutATokenKeepNobodyOut(t *testing.T) {
	t.Parallel()
	f := func(name, head string, slow, size int, honest string, want int) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln, s, stop := openWorld(t)
				start := time.Now()
				var all sync.WaitGroup
				for range slow {
					c := ln.dial()
					fmt.Fprintf(c, head+"\r\nA", size)
					all.Go(func() {
						_, _ = io.Copy(io.Discard, c)
						c.Close()
					})
					synctest.Wait()
				}
				c := ln.dial()
				if got, body := exchangeOver(t, c, fmt.Sprintf(honest+"Connection: close\r\n\r\ntoken=abc", 9)); got != want {
					t.Errorf("beside %d slow ones: %d %s", slow, got, body)
				}
				c.Close()
				if took := time.Since(start); took != 0 {
					t.Errorf("it waited %v", took)
				}
				all.Wait()
				if took := time.Since(start); took > s.cfg.BodyWindow+time.Second { // net/http waits half a second with closing
					t.Errorf("the slow ones were cut off after %v", took)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
				if s.notes.held != 0 || s.posts.held != 0 || s.receiptsRead.bodies.Len() != 0 || s.formsRead.bodies.Len() != 0 {
					t.Error("something is still held")
				}
			})
		})
	}
	f("receipts", signedHead, maxReceipts, 1000, signedHead, 204)
	f("forms", formHead, maxPages, 1000, formHead, 200)
	f("pages with a body", lookHead, maxPages, 1000, formHead, 200)
	f("receipts, as large as they may be", signedHead, maxReceipts, maxReceipt, signedHead, 204)
	f("more receipts than are read at a time", signedHead, maxReading, initialReadSize, signedHead, 204)
	f("more forms than are read at a time", formHead, maxReading, initialReadSize, formHead, 200)
}

// Over maxReading the body that has been on its way for longest is answered 503.
func TestTheOldestBodyMakesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ln, s, stop := openWorld(t)
		start := time.Now()
		first := ln.dial()
		answer := make(chan string, 1)
		go func() {
			fmt.Fprintf(first, signedHead+"Connection: close\r\n\r\nA", 1000)
			got, _ := io.ReadAll(first)
			answer <- string(got)
		}()
		synctest.Wait()
		for range maxReading - 1 {
			s.receiptsRead.addBody(http.NewResponseController(nil))
		}
		c := ln.dial()
		if got, body := exchangeOver(t, c, fmt.Sprintf(signedHead+"\r\na", 1)); got != 204 {
			t.Errorf("the newcomer: %d %s", got, body)
		}
		if got := <-answer; !strings.Contains(got, "503 ") || !strings.Contains(got, "Retry-After: 1") {
			t.Errorf("the oldest: %q", got)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("the oldest was answered after %v", took)
		}
		c.Close()
		first.Close()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Receipts that are being handled take nothing of callers, and are bounded.
func TestReceiptsTakeNothingOfCallers(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	s := newWorld().start(t, Config{MaxInFlight: 1, MaxFanout: 1 << 20, BulkMemory: 2 << 20, MemoryWait: time.Millisecond}, func(d *Deps) {
		d.Receipts = map[string]Receipt{"twilio": {Signature: "X-Twilio-Signature", Take: func(_ *http.Request, b []byte) error {
			if string(b) == "slow" {
				entered <- struct{}{}
				<-release
			}
			return nil
		}}}
	})
	ask(s, "POST", "/v1/receipts/else", "", "", func(r *http.Request) { // not read: there is no such provider
		r.Body, r.ContentLength = io.NopCloser(errReader{t}), maxReceipt
	})
	signed := header("X-Twilio-Signature", "x")
	var wg sync.WaitGroup
	for range maxReceipts {
		wg.Go(func() { ask(s, "POST", "/v1/receipts/twilio", "", "slow", signed) })
		<-entered
	}
	if got := ask(s, "POST", "/v1/receipts/twilio", "", "a=b", signed); got.status != 503 || got.problem(t).Code != "busy" {
		t.Errorf("one receipt too many: %d %s", got.status, got.body)
	}
	tok := token(t, "shop", api.ScopeSend)
	for path, body := range map[string]string{"/v1/notifications": "{}", "/v1/notifications:fanout": strings.Repeat("x", 1<<20)} {
		if got := ask(s, "POST", path, tok, body); got.status != 201 {
			t.Errorf("%s beside receipts: %d %s", path, got.status, got.body)
		}
	}
	close(release)
	wg.Wait()
	if got := ask(s, "POST", "/v1/receipts/twilio", "", strings.Repeat("x", maxReceipt), signed); got.status != 204 {
		t.Errorf("after, the largest: %d %s", got.status, got.body)
	}
	if got := ask(s, "POST", "/v1/receipts/twilio", "", strings.Repeat("x", maxReceipt+1), signed); got.status != 413 {
		t.Errorf("too large: %d %s", got.status, got.body)
	}
	if s.posts.held != 0 || s.notes.held != 0 {
		t.Error("memory was not given back")
	}
}
