package enginetest

import (
	"context"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// startListener starts a listener on a broadcast channel. It sends each message that the listener
// gets to the Go channel heard. The function stop ends the listener and returns the error of Listen.
func startListener(t T, b engine.Broadcast, channel string) (heard chan string, stop func() error) {
	ctx, cancel := context.WithCancel(bg)
	heard = make(chan string, 100)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- b.Listen(ctx, channel, func() { close(ready) }, func(m []byte) { heard <- string(m) })
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("Listen: %v", err)
	}
	stop = func() error { cancel(); return <-ended }
	return heard, stop
}

// Broadcast runs the suite of engine.Broadcast.
func Broadcast(t *testing.T, open Opener[engine.Broadcast]) {
	next := func(t *testing.T, heard chan string) string {
		select {
		case m := <-heard:
			return m
		case <-time.After(time.Minute):
			t.Fatal("the listener got no message for a minute")
			return ""
		}
	}
	t.Run("Send sends message to every listener of channel", func(t *testing.T) {
		b, _ := open(t)
		one, stopOne := startListener(t, b, "c")
		two, stopTwo := startListener(t, b, "c")
		other, stopOther := startListener(t, b, "other")
		must(t, b.Send(bg, "c", []byte("m\x00\xff")))
		same(t, "the first listener", next(t, one), "m\x00\xff")
		same(t, "the second listener", next(t, two), "m\x00\xff")
		must(t, b.Send(bg, "other", []byte("o")))
		same(t, "the listener of another channel", next(t, other), "o")
		must(t, stopOne())
		must(t, b.Send(bg, "c", []byte("n")))
		same(t, "the one that goes on", next(t, two), "n")
		must(t, stopTwo())
		must(t, stopOther())
		same(t, "after its end", len(one), 0)
	})
	t.Run("It stores no message: a listener misses every message that is sent while it is disconnected", func(t *testing.T) {
		b, _ := open(t)
		must(t, b.Send(bg, "c", []byte("before")))
		heard, stop := startListener(t, b, "c")
		must(t, b.Send(bg, "c", []byte("after")))
		same(t, "heard", next(t, heard), "after")
		must(t, stop())
	})
	t.Run("Listen calls fn with each message, one at a time", func(t *testing.T) {
		b, _ := open(t)
		heard, stop := startListener(t, b, "c")
		for _, m := range []string{"1", "2", "3"} {
			must(t, b.Send(bg, "c", []byte(m)))
		}
		same(t, "in order", next(t, heard)+next(t, heard)+next(t, heard), "123")
		must(t, stop())
	})
}
