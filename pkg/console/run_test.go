//go:build unix

package console

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

// screen is a terminal under test: what was written to it, and who waits.
type screen struct {
	mu      sync.Mutex
	written bytes.Buffer
	more    chan struct{}
}

func (s *screen) read(f *os.File) {
	buf := make([]byte, 4096)
	for {
		n, err := f.Read(buf)
		s.mu.Lock()
		s.written.Write(buf[:n])
		s.mu.Unlock()
		select {
		case s.more <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.String()
}

// await returns when text has been written behind the first from bytes, and how
// much had been by then.
func (s *screen) await(t *testing.T, from int, text string) int {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		if all := s.text(); strings.Contains(all[from:], text) {
			return len(all)
		}
		select {
		case <-s.more:
		case <-limit:
			t.Fatalf("%q was never drawn: %q", text, s.text()[from:])
		}
	}
}

// TestOnTerminal drives the page on a pseudo-terminal: keys go in, frames come
// out, and when it ends the terminal is as it was.
func TestOnTerminal(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		key  string
		want error
	}{"q": {"q", nil}, "ctrl+c": {"\x03", context.Canceled}, "context": {"", context.Canceled}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs, err := pty.Open()
			if err != nil {
				t.Skipf("no pseudo-terminal: %v", err)
			}
			if err := pty.Setsize(ours, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
				t.Fatal(err)
			}
			before, err := term.GetState(int(theirs.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			f := newFake()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			s := &screen{more: make(chan struct{}, 1)}
			var wg sync.WaitGroup
			wg.Go(func() { s.read(ours) })
			ended := make(chan error, 1)
			wg.Go(func() {
				ended <- Run(ctx, theirs, theirs, []string{"TERM=xterm-256color", "NO_COLOR=1"}, Options{Server: f, URL: "http://h", Context: "dev"})
			})
			press := func(keys string) int {
				t.Helper()
				n := len(s.text())
				if _, err := ours.WriteString(keys); err != nil {
					t.Fatal(err)
				}
				return n
			}
			s.await(t, 0, "email-bulk") // lanes: answered and drawn
			s.await(t, press("4"), "caller:shop")
			s.await(t, press("O"), "open circuit caller:shop?")
			s.await(t, press("y"), "circuit caller:shop is open")
			if err := pty.Setsize(ours, &pty.Winsize{Rows: 10, Cols: 40}); err != nil {
				t.Fatal(err)
			}
			s.await(t, press("?"), "keys")
			if end.key == "" {
				stop()
			} else {
				press("x" + end.key) // x leaves the help
			}
			select {
			case err := <-ended:
				if !errors.Is(err, end.want) || (err == nil) != (end.want == nil) {
					t.Errorf("it ended with %v, want %v", err, end.want)
				}
			case <-time.After(time.Minute):
				t.Fatal("it does not end")
			}
			after, err := term.GetState(int(theirs.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			if *after != *before {
				t.Errorf("the terminal's settings are %+v, were %+v", after, before)
			}
			// A close right behind a write can take what was written away from a reader
			// (seen once in 120,000 with Linux 6.18), so the last word is read first.
			if _, err := theirs.WriteString("the last word"); err != nil {
				t.Fatal(err)
			}
			s.await(t, 0, "the last word")
			_ = theirs.Close()
			wg.Wait() // the reader sees the end of the terminal
			_ = ours.Close()
			all := s.text()
			for on, off := range map[string]string{"\x1b[?1049h": "\x1b[?1049l", "\x1b[?25l": "\x1b[?25h", "\x1b[?2004h": "\x1b[?2004l"} {
				if strings.LastIndex(all, off) <= strings.LastIndex(all, on) {
					t.Errorf("%q is not taken back", on)
				}
			}
			for _, sgr := range []string{"\x1b[31", "\x1b[32", "\x1b[33", "\x1b[36", ";31m", ";38;"} {
				if strings.Contains(all, sgr) {
					t.Errorf("a colour in spite of NO_COLOR: %q", sgr)
				}
			}
			if got := f.changes; len(got) != 1 || got[0] != "caller:shop open" {
				t.Errorf("changes: %q", got)
			}
		})
	}
}
