package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
)

// client is a connection that is kept open.
type client struct {
	net.Conn
	r *bufio.Reader
}

// asks sends a request and returns the status of its answer; 0: the connection was closed.
func (c *client) asks(text string) int {
	go func() { _, _ = io.WriteString(c, text+"\r\nHost: x\r\n\r\n") }()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// crowd is a server of few connections.
type crowd struct {
	ln   *pipes
	open []net.Conn
}

const most = 64

// inCrowd runs f with a server of most connections.
func inCrowd(t *testing.T, w func() *world, f func(t *testing.T, d *crowd)) {
	synctest.Test(t, func(t *testing.T) {
		ln, _, stop := pipeServer(t, w(), Config{MaxConns: most, IdleTimeout: time.Hour})
		d := &crowd{ln: ln}
		f(t, d)
		for _, c := range d.open {
			c.Close()
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func (d *crowd) dial() *client {
	c := d.ln.dial()
	d.open = append(d.open, c)
	return &client{c, bufio.NewReader(c)}
}

const probe = "GET /healthz HTTP/1.1"

// Connections that were opened without a token, whatever they do, keep nobody out.
func TestConnectionsOfStrangersKeepNobodyOut(t *testing.T) {
	t.Parallel()
	fill := map[string]func(d *crowd){
		"kept alive": func(d *crowd) { d.dial().asks(probe) },
		"silent":     func(d *crowd) { d.dial() },
		"slow header": func(d *crowd) {
			go func(c *client) { _, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHo") }(d.dial())
		},
		// The answer is 401, and net/http waits for the rest of the body first.
		"slow body": func(d *crowd) {
			go func(c *client) { c.asks("POST /v1/notifications HTTP/1.1\r\nContent-Length: 1000") }(d.dial())
		},
	}
	for name, one := range fill {
		t.Run(name, func(t *testing.T) {
			inCrowd(t, newWorld, func(t *testing.T, d *crowd) {
				start := time.Now()
				for range 2 * most {
					one(d)
					synctest.Wait()
				}
				if got := d.dial().asks(probe); got != 200 {
					t.Errorf("a further client: %d", got)
				}
				if took := time.Since(start); took != 0 {
					t.Errorf("it waited %v", took)
				}
			})
		})
	}
}

// A caller's connection outlives those of strangers, and its request is never cut off.
func TestCallersConnectionsAreKept(t *testing.T) {
	t.Parallel()
	var entered, release chan struct{}
	slow := func() *world {
		w := newWorld()
		entered, release = w.hold()
		return w
	}
	inCrowd(t, slow, func(t *testing.T, d *crowd) {
		auth := "\r\nAuthorization: Bearer " + token(t, "shop", api.ScopeSend, api.ScopeRead)
		post := fmt.Sprintf("POST /v1/notifications HTTP/1.1%s\r\nContent-Length: 0", auth)
		idle := d.dial()
		if got := idle.asks("GET /v1/users/u HTTP/1.1" + auth); got != 404 {
			t.Fatalf("a caller: %d", got)
		}
		answers := make(chan int, most)
		for range most - 2 {
			c := d.dial()
			go func() { answers <- c.asks(post) }()
			<-entered
		}
		for range most {
			if got := d.dial().asks(probe); got != 200 {
				t.Fatalf("a stranger: %d", got)
			}
			synctest.Wait() // until its connection is idle
		}
		if got := idle.asks("GET /v1/users/u HTTP/1.1" + auth); got != 404 {
			t.Errorf("the caller's connection was closed for strangers': %d", got)
		}
		// With nothing but requests of callers, the next one waits for the first to end.
		for range 2 {
			c := d.dial()
			go func() { answers <- c.asks(post) }()
			<-entered
		}
		last := make(chan int, 1)
		c := d.dial()
		go func() { last <- c.asks(probe) }()
		synctest.Wait()
		select {
		case got := <-last:
			t.Errorf("over MaxConns: %d", got)
		default:
		}
		close(release)
		if got := <-last; got != 200 {
			t.Errorf("after that: %d", got)
		}
		for range most {
			if got := <-answers; got != 201 {
				t.Errorf("a caller's request: %d", got)
			}
		}
	})
}

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	from net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.from }

// An address with more than half of the connections makes room for itself.
func TestAnAddressMakesRoomForItself(t *testing.T) {
	t.Parallel()
	ln := newPipes()
	closed := 0
	l := newConnListener(Config{Listener: ln, MaxConns: 8}, func() string { return "" }, func() { closed++ })
	accept := func(ip string) *listenerConn {
		t.Helper()
		client, server := net.Pipe()
		t.Cleanup(func() { client.Close() })
		go func() { ln.conns <- addressed{server, &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}} }()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return c.(*listenerConn) //nolint:forcetypeassert // a wire's
	}
	isOpen := func(c *listenerConn) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return c.place != nil
	}
	others := []*listenerConn{accept("192.0.2.1"), accept("192.0.2.2")}
	for i := range 20 {
		accept(fmt.Sprintf("2001:db8::%x", i+1)) // one network
	}
	for _, c := range others {
		if !isOpen(c) {
			t.Errorf("the connection of %v made room for another address", c.source)
		}
	}
	if l.open != 8 || closed != 14 {
		t.Errorf("%d are open, %d closed", l.open, closed)
	}
	accept("192.0.2.3") // of few: the oldest of all goes
	if isOpen(others[0]) || !isOpen(others[1]) {
		t.Error("not the oldest was closed")
	}
	for of := range ranks {
		for c := l.oldestInRank(of); c != nil; c = l.oldestInRank(of) {
			c.Close()
		}
	}
	if len(l.bySource) != 0 || l.open != 0 {
		t.Errorf("left: %v, %d open", l.bySource, l.open)
	}
}

// A connection that was opened ahead takes a first request as one between two requests does,
// and from its first byte on that request has all the time a request has.
func TestAConnectionOpenedAheadIsKept(t *testing.T) {
	t.Parallel()
	head := "POST /v1/notifications HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer TOKEN\r\nContent-Length: 100\r\n\r\n"
	body := strings.Repeat("x", 100)
	// f sends the parts, each after so many seconds, and reads until the connection is closed.
	f := func(name string, want time.Duration, answer string, parts ...any) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			ln, _, stop := pipeServer(t, newWorld(), Config{})
			tok := token(t, "shop", api.ScopeSend)
			c := ln.dial()
			start := time.Now()
			go func() {
				for _, p := range parts {
					switch p := p.(type) {
					case int:
						time.Sleep(time.Duration(p) * time.Second)
					case string:
						_, _ = io.WriteString(c, strings.ReplaceAll(p, "TOKEN", tok))
					}
				}
			}()
			got, _ := io.ReadAll(c)
			if took := time.Since(start); took != want {
				t.Errorf("%s: closed after %v, want %v", name, took, want)
			}
			if !strings.Contains(string(got), answer) {
				t.Errorf("%s: answered %q", name, got)
			}
			c.Close()
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	f("nothing is sent", time.Minute, "")
	f("a request after 30 s", 30*time.Second, "201 Created", 30, head+body)
	f("its header takes 4 s, its body 10 s", 44*time.Second, "201 Created", 30, head[:40], 4, head[40:], 10, body)
	f("its header does not end", 35*time.Second, "", 30, head[:40])
	f("its body does not come", 45*time.Second, api.CodeBodyTimeout, 30, head)
}

// Accept ends when the listener is closed while it waits for room.
func TestAcceptEndsWhileItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		l := newConnListener(Config{Listener: ln, MaxConns: 1}, nil, func() {})
		go ln.dial()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		l.updateRank(c.(*listenerConn), true, true)
		go ln.dial()
		ended := make(chan error, 1)
		go func() { _, err := l.Accept(); ended <- err }()
		synctest.Wait()
		l.Close()
		if err := <-ended; err == nil {
			t.Error("it returned a connection")
		}
		c.Close()
	})
}
