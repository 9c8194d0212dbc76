package main

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
)

// TestWireCut checks that a wire with a shut gate forwards no bytes and closes no connection. When
// the gate opens, the bytes that were sent in the meantime must arrive, even if the client has
// closed its connection.
func TestWireCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, front := net.Pipe()
		inner, far := net.Pipe()
		w := &wire{gate: new(gate), dial: func(context.Context) (net.Conn, error) { return inner, nil }}
		go w.forward(t.Context(), front)
		heard := make(chan string, 10)
		go func() {
			buf := make([]byte, 100)
			for {
				n, err := far.Read(buf)
				if err != nil {
					heard <- err.Error()
					return
				}
				heard <- string(buf[:n])
			}
		}()
		hear := func(want string) {
			t.Helper()
			synctest.Wait()
			select {
			case got := <-heard:
				if got != want {
					t.Fatalf("heard %q, want %q", got, want)
				}
			default:
				if want != "" {
					t.Fatalf("heard nothing, want %q", want)
				}
			}
		}
		say := func(text string) {
			t.Helper()
			if _, err := io.WriteString(client, text); err != nil {
				t.Fatal(err)
			}
		}
		say("before")
		hear("before")
		w.gate.shut()
		say("meanwhile")
		client.Close()
		hear("")
		if n := w.bytes.Load(); n != int64(len("before")) {
			t.Errorf("%d bytes were forwarded", n)
		}
		w.gate.open()
		hear("meanwhile")
		hear(io.EOF.Error())
	})
}
