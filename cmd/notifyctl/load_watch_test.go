package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/term"
)

// nowhere is a scenario that needs no server.
func nowhere(t *testing.T, duration string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nowhere.yaml")
	text := "name: nowhere\nduration: " + duration + "\nsteps: [{target: \"null\", rate: 200, workers: 2}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// tty is the far end of one.
type tty struct {
	*os.File
	mu   sync.Mutex
	seen bytes.Buffer
	more chan struct{}
}

func (c *tty) read() {
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		c.mu.Lock()
		c.seen.Write(buf[:n])
		c.mu.Unlock()
		select {
		case c.more <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (c *tty) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.String()
}

func (c *tty) await(t *testing.T, want string) {
	t.Helper()
	for limit := time.After(2 * time.Minute); !strings.Contains(c.text(), want); {
		select {
		case <-c.more:
		case <-limit:
			t.Fatalf("the terminal never showed %q; it ends with\n%q", want, c.text()[max(0, len(c.text())-2000):])
		}
	}
}

// onTerminal runs a command line on a terminal of 80 columns.
func onTerminal(t *testing.T, w *world, args ...string) (*tty, <-chan int) {
	t.Helper()
	far, near, err := pty.Open()
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	if err := pty.Setsize(near, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	c := &tty{File: far, more: make(chan struct{}, 1)}
	var wg sync.WaitGroup
	wg.Go(c.read)
	t.Cleanup(func() { near.Close(); far.Close(); wg.Wait() })
	p := &program{
		in: near, out: near, err: near, now: time.Now, inTerminal: true, outTerminal: true, errTerminal: true, width: 80,
		getenv: func(name string) string { return w.env[name] },
	}
	code := make(chan int, 1)
	wg.Go(func() { code <- run(t.Context(), p, args) })
	return c, code
}

// TestLoadOnATerminal: the panels are shown; q stops the run, and what is left on
// the screen is its summary.
func TestLoadOnATerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "http://127.0.0.1:1")
	w.env["TERM"], w.env["LC_ALL"], w.env["XDG_DATA_HOME"] = "xterm-256color", "C.UTF-8", t.TempDir()
	c, code := onTerminal(t, w, "load", "run", nowhere(t, "10m"), "--no-calibration")
	c.await(t, "\x1b[?1049h")
	c.await(t, "▶") // it runs
	// Only what changed is written, so one cannot wait for words; the keys are taken in
	// their order.
	if _, err := c.WriteString("mhere\rqy"); err != nil {
		t.Fatal(err)
	}
	c.await(t, "PARTIAL")
	c.await(t, "load scenario=") // its last line
	if got := <-code; got != term.ExitInterrupt {
		t.Errorf("exit %d", got)
	}
	_, after, left := strings.Cut(c.text(), "\x1b[?1049l")
	if !left || !strings.Contains(after, "load scenario=nowhere") || strings.Contains(after, "\x1b[?1049h") {
		t.Errorf("after the panels there is\n%s", after)
	}
	out, errs, exit := w.ctl(t.Context(), "load", "show", "last", "-o", "json", "--jq", `.markers[] | select(.kind == "user") | .text`)
	if exit != 0 || out != "here\n" {
		t.Errorf("the marker: exit %d, %q, %s", exit, out, errs)
	}
}

// TestLoadWithoutATerminal: a pipe gets lines, and no escapes.
func TestLoadWithoutATerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "http://127.0.0.1:1")
	w.env["TERM"], w.env["XDG_DATA_HOME"] = "xterm-256color", t.TempDir()
	file := nowhere(t, "2s")
	out, errs, code := w.ctl(t.Context(), "load", "run", file, "--no-calibration", "--no-keep")
	if code != 0 || strings.Contains(out+errs, "\x1b") || !strings.Contains(errs, "  0:01 ") || !strings.Contains(out, "\nload scenario=nowhere") {
		t.Errorf("exit %d\n%q\n%q", code, errs, out)
	}
	out, errs, code = w.ctl(t.Context(), "load", "run", file, "--no-calibration", "-o", "jsonl", "-q")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || errs != "" || len(lines) < 2 {
		t.Fatalf("exit %d, %q, %d lines", code, errs, len(lines))
	}
	for i, l := range lines {
		var got struct {
			Type   string `json:"type"`
			Schema int    `json:"schema"`
		}
		if err := json.NewDecoder(strings.NewReader(l)).Decode(&got); err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		if last := i == len(lines)-1; last != (got.Schema == load.SchemaVersion) || last == (got.Type == "second") {
			t.Errorf("line %d of %d: %.80s", i, len(lines), l)
		}
	}
	out, _, code = w.ctl(t.Context(), "load", "ls", "-o", "json", "--jq", ".items | length")
	if code != 0 || out != "1\n" {
		t.Errorf("kept: exit %d, %s", code, out)
	}
}

// TestLoadMetrics: during a run its figures are served, on loopback only.
func TestLoadMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "http://127.0.0.1:1")
	w.env["XDG_DATA_HOME"] = t.TempDir()
	file := nowhere(t, "1s")
	for _, addr := range []string{"0.0.0.0:0", "example.com:1", "9469", ":9469"} {
		if _, errs, code := w.ctl(t.Context(), "load", "run", file, "--metrics", addr, "--no-keep"); code != term.ExitUsage || !strings.Contains(errs, "loopback") {
			t.Errorf("%s: exit %d, %s", addr, code, errs)
		}
	}
	_, errs, code := w.ctl(t.Context(), "load", "run", file, "--metrics", "127.0.0.1:0", "--no-keep", "--no-calibration")
	if code != 0 || !strings.Contains(errs, "metrics: http://127.0.0.1:") {
		t.Errorf("exit %d, %s", code, errs)
	}
}
