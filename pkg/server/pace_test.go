package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/request"
)

// A body must come at the rate asked for, and be there in the end.
func TestBodiesMustCome(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	// f sends a body in pieces of so many bytes a second.
	f := func(name string, piece int, pause func(i int) time.Duration, want time.Duration, answer string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			ln, _, stop := pipeServer(t, newWorld(), Config{})
			c := ln.dial()
			start := time.Now()
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				fmt.Fprintf(c, "POST /v1/notifications:fanout HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", token(t, "shop", api.ScopeSend), size)
				for i, left := 0, size; left > 0; i++ {
					n := min(piece, left)
					if _, err := c.Write(bytes.Repeat([]byte("x"), n)); err != nil {
						return // cut off
					}
					if left -= n; left > 0 {
						time.Sleep(pause(i))
					}
				}
			}()
			got, _ := io.ReadAll(c)
			if took := time.Since(start); took != want {
				t.Errorf("%s: answered after %v, want %v", name, took, want)
			}
			if !strings.Contains(string(got), answer) {
				t.Errorf("%s: answered %q", name, got)
			}
			c.Close()
			<-sent
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	every := func(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }
	f("fast enough", 80<<10, every(time.Second), 51*time.Second, "201 Created")
	f("too slow", 50<<10, every(time.Second), 5*time.Second, "slower than 64 KiB per second, measured over 5s")
	f("too slow all in all", 6800, every(100*time.Millisecond), time.Minute, "did not arrive in time")
	f("slow in the middle", 1<<20, func(i int) time.Duration {
		if i == 2 {
			return 10 * time.Second
		}
		return time.Second
	}, 7*time.Second, "408 Request Timeout")
	f("in bursts", 400<<10, every(4900*time.Millisecond), 49*time.Second, "201 Created")
}

// The time for a body is over when it is there: it does not end the handler.
func TestABodysTimeIsNotTheHandlers(t *testing.T) {
	t.Parallel()
	for path, size := range map[string]int{"/v1/notifications": 2, "/v1/notifications:batch": 2, "/v1/notifications:fanout": 5 * 64 << 10} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.intake = func(ctx context.Context, _ string, _ request.Meta, _ []byte) (request.Answer, error) {
				select {
				case <-time.After(25 * time.Second): // a slow log
					return request.Answer{Status: 201, Body: []byte(`{}`)}, nil
				case <-ctx.Done():
					return request.Answer{}, ctx.Err()
				}
			}
			ln, _, stop := pipeServer(t, w, Config{})
			c := ln.dial()
			go fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", path, token(t, "shop", api.ScopeSend), size, strings.Repeat("x", size))
			if got, _ := io.ReadAll(c); !strings.Contains(string(got), "201 Created") {
				t.Errorf("%s: %q", path, got)
			}
			c.Close()
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A body that waited for memory was not slow meanwhile.
func TestWaitingForMemoryIsNotSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ln, s, stop := pipeServer(t, newWorld(), Config{MemoryWait: 4 * time.Second})
		var other share
		if err := s.bulk.reserve(t.Context(), &other, 0, s.cfg.BulkMemory-initialReadSize); err != nil {
			t.Fatal(err)
		}
		c := ln.dial()
		go func() {
			fmt.Fprintf(c, "POST /v1/notifications:fanout HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", token(t, "shop", api.ScopeSend), 2*initialReadSize)
			c.Write(make([]byte, initialReadSize))
			time.Sleep(6 * time.Second)
			c.Write(make([]byte, initialReadSize))
		}()
		time.AfterFunc(3*time.Second, func() { s.bulk.release(&other, s.cfg.BulkMemory-initialReadSize) })
		if got, _ := io.ReadAll(c); !strings.Contains(string(got), "201 Created") {
			t.Errorf("%q", got)
		}
		c.Close()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
