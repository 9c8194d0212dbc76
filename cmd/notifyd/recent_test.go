package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestRecentKeepsTheLastLines(t *testing.T) {
	t.Parallel()
	var r recentLog
	if got := r.Lines(); len(got) != 0 {
		t.Errorf("got %q", got)
	}
	for i := range recentLines + 3 {
		fmt.Fprintf(&r, "line %d\n", i)
	}
	got := r.Lines()
	if len(got) != recentLines || got[0] != "line 3" || got[recentLines-1] != fmt.Sprintf("line %d", recentLines+2) {
		t.Errorf("%d lines, from %q to %q", len(got), got[0], got[len(got)-1])
	}
	if n, err := r.Write([]byte(strings.Repeat("x", 2*recentBytes))); n != 2*recentBytes || err != nil {
		t.Errorf("wrote %d, %v", n, err)
	}
	if got := r.Lines(); len(got[recentLines-1]) != recentBytes {
		t.Errorf("a line of %d bytes is kept", len(got[recentLines-1]))
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				fmt.Fprintln(&r, "y")
				r.Lines()
			}
		})
	}
	wg.Wait()
}
