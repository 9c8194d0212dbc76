package main

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/cli"
)

// One order may arrive as several signals; a later one is another order.
func TestSignals(t *testing.T) {
	type at struct {
		ms int
		s  os.Signal
	}
	const term, interrupt = syscall.SIGTERM, syscall.SIGINT
	f := func(exits []int, signals ...at) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			ch := make(chan os.Signal, 2)
			drains, codes, done := 0, []int(nil), make(chan struct{})
			go func() {
				obey(ch, func() { drains++ }, func(code int) { codes = append(codes, code) })
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
	f(nil, at{10, term})
	f(nil, at{10, term}, at{10, term})
	f(nil, at{10, term}, at{13, term}, at{500, interrupt})
	f([]int{cli.ExitTerminated}, at{10, term}, at{13, term}, at{510, term})
	f([]int{cli.ExitInterrupt}, at{0, term}, at{3000, interrupt})
	f([]int{cli.ExitTerminated}, at{0, interrupt}, at{3000, term})
}
