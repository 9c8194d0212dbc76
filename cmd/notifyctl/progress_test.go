package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// TestProgressAfterInterrupt: the echo of a ^C leaves the cursor in column 2, and mpb
// draws from where the cursor is. So every frame begins with a carriage return.
func TestProgressAfterInterrupt(t *testing.T) {
	t.Parallel()
	far, near, err := pty.Open()
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	if err := pty.Setsize(near, &pty.Winsize{Rows: 24, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	drawn := make(chan string)
	go func() {
		b, _ := io.ReadAll(far) // until its end is an error of the terminal
		drawn <- string(b)
	}()
	p := &program{err: near, errTerminal: true, now: time.Now, getenv: func(string) string { return "" }}
	bar := p.startProgress("checking", 10)
	for range 10 {
		bar.add(1)
	}
	bar.end()
	bar = p.startProgress("checking", 0)
	bar.add(1)
	bar.end()
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	out := <-drawn
	_ = far.Close()
	frames := 0
	for line := range strings.SplitSeq(out, "\n") {
		if before, _, ok := strings.Cut(line, "checking"); ok {
			frames++
			if !strings.HasSuffix(before, "\r") {
				t.Errorf("a frame does not begin with a carriage return: %q", line)
			}
		}
	}
	if frames < 2 {
		t.Errorf("%d frames were drawn: %q", frames, out)
	}
}
