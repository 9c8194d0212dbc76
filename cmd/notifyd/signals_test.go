package main

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/term"
)

// One order may arrive as several signals; a later one is another order.
func TestSignals(t *testing.T) {
	type at struct {
		ms int
		s  os.Signal
	}
	const terminate, interrupt = syscall.SIGTERM, syscall.SIGINT
	f := func(exits []int, signals ...at) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			ch := make(chan os.Signal, 2)
			drains, codes, done := 0, []int(nil), make(chan struct{})
			go func() {
				handleSignals(ch, func() { drains++ }, func(code int) { codes = append(codes, code) })
				close(done)
			}()
			began := time.Now()
			for _, next := range signals {
				time.Sleep(time.Duration(next.ms)*time.Millisecond - time.Since(began))
				ch <- next.s
				synctest.Wait()
			}
			if drains != 1 || !slices.Equal(codes, exits) {
				t.Errorf("%v: %d drains, exits %v, want one and %v", signals, drains, codes, exits)
			}
			close(ch) // ends it where no signal did
			<-done
		})
	}
	f(nil, at{10, terminate})
	f(nil, at{10, terminate}, at{10, terminate})
	f(nil, at{10, terminate}, at{13, terminate}, at{500, interrupt})
	f([]int{term.ExitTerminated}, at{10, terminate}, at{13, terminate}, at{510, terminate})
	f([]int{term.ExitInterrupt}, at{0, terminate}, at{3000, interrupt})
	f([]int{term.ExitTerminated}, at{0, interrupt}, at{3000, terminate})
}
