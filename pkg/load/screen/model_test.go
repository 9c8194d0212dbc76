package screen

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/load"
)

func TestStopAsksFirst(t *testing.T) {
	t.Parallel()
	s := open(t, 80, 24, 48, nil)
	s.press("q", "n")
	if s.fake.stops != 0 || s.quit {
		t.Fatalf("n: stopped %d times, quit %t", s.fake.stops, s.quit)
	}
	s.press("q", "y")
	if s.fake.stops != 1 || s.quit || !strings.Contains(s.text(), "stopping") {
		t.Fatalf("y: stopped %d times, quit %t", s.fake.stops, s.quit)
	}
	s.press("q", "y")
	if s.fake.stops != 1 {
		t.Errorf("stopped %d times", s.fake.stops)
	}
	s.fake.End()
	if _, cmd := s.Update(tickMsg{}); cmd == nil || s.left != LeftAtEnd {
		t.Errorf("the end of the run does not end the screen: %v", s.left)
	} else if _, ok := cmd().(tea.QuitMsg); !ok {
		t.Error("the end of the run does not end the screen")
	}
}

func TestCtrlC(t *testing.T) {
	t.Parallel()
	s := open(t, 80, 24, 48, nil)
	s.press("/", "x", "ctrl+c") // ctrl+c also works while the input line is open
	if s.fake.stops != 1 || s.quit {
		t.Fatalf("once: stopped %d times, quit %t", s.fake.stops, s.quit)
	}
	s.press("ctrl+c")
	if s.fake.stops != 1 || !s.quit || s.left != LeftAtOnce {
		t.Errorf("twice: stopped %d times, quit %t, %v", s.fake.stops, s.quit, s.left)
	}
	w := open(t, 80, 24, 48, func(o *Options) { o.Control = nil })
	w.press("ctrl+c")
	if !w.quit || w.left != LeftAtOnce {
		t.Errorf("watching: quit %t, %v", w.quit, w.left)
	}
}

func TestLeaveRunning(t *testing.T) {
	t.Parallel()
	s := open(t, 80, 24, 48, nil)
	s.press("Q")
	if !s.quit || s.left != LeftRunning || s.fake.stops != 0 {
		t.Errorf("quit %t, %v, stopped %d times", s.quit, s.left, s.fake.stops)
	}
}

func TestStay(t *testing.T) {
	t.Parallel()
	s := open(t, 80, 24, 48, func(o *Options) { o.Stay = true })
	s.fake.End()
	s.tick()
	s.press("m", "[")
	if s.quit || s.layer != layerNone || s.fake.marks != nil {
		t.Errorf("quit %t, layer %v", s.quit, s.layer)
	}
	s.press("q")
	if !s.quit || s.left != LeftAtEnd {
		t.Errorf("q: quit %t, %v", s.quit, s.left)
	}
}

// TestFreeze checks that a frozen screen keeps its snapshot until the end of the run.
func TestFreeze(t *testing.T) {
	t.Parallel()
	s := open(t, 80, 24, 38, nil)
	s.press("space")
	s.fake.Put(at(t, 57))
	s.tick()
	if !strings.Contains(s.text(), "0:38 of") || !strings.Contains(s.text(), "frozen") {
		t.Errorf("frozen:\n%s", s.text())
	}
	s.press("space")
	if !strings.Contains(s.text(), "0:57 of") {
		t.Error("it does not go on")
	}
	s.press("space")
	s.fake.Put(at(t, 58))
	s.fake.End()
	s.tick()
	if !strings.Contains(s.text(), "0:58 of") {
		t.Error("the end is not shown")
	}
}

// TestSteer checks that only the first change of the arrivals asks for confirmation. After this change
// the run does not measure the planned rate.
func TestSteer(t *testing.T) {
	t.Parallel()
	got := func(s *screen) string { return strings.Join(s.fake.steered, ", ") }
	s := open(t, 80, 24, 38, func(o *Options) { o.Steer = o.Source.(*fake) })
	s.press("p", "n", "+", "esc")
	if got(s) != "" || !strings.Contains(s.text(), "running") {
		t.Fatalf("not asked: %s\n%s", got(s), s.text())
	}
	s.press("-", "y", "+", "p")
	if got(s) != "times 0.91, times 1.10, paused true" {
		t.Errorf("steered %s", got(s))
	}
	s = open(t, 80, 24, 48, steerable)
	s.press("p")
	if got(s) != "paused false" || !strings.Contains(s.text(), "= load paused") {
		t.Errorf("paused already: %s\n%s", got(s), s.text())
	}
	s.fake.End()
	s.tick()
	s.press("p", "y")
	w := open(t, 80, 24, 38, nil)
	w.press("p", "y", "+", "y")
	if got(s) != "paused false" || got(w) != "" || !strings.Contains(w.text(), "this run cannot be paused") {
		t.Errorf("over: %s, watched: %s\n%s", got(s), got(w), w.text())
	}
}

func TestMark(t *testing.T) {
	t.Parallel()
	s := open(t, 80, 24, 38, nil)
	s.press("m", "q?", "space", "1", "enter", "m", "enter", "m", "x", "esc")
	s.Update(tea.PasteMsg{Content: "nobody types"})
	if got := strings.Join(s.fake.marks, "|"); got != "q? 1|marker" {
		t.Errorf("marked %q", got)
	}
	s.press("m")
	s.Update(tea.PasteMsg{Content: "\x1b[31mred\r\n"})
	if f := s.draw(); strings.Contains(ansi.Strip(f), "\x1b") || !strings.Contains(f, "red") {
		t.Errorf("pasted:\n%q", f)
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	s := open(t, 80, 24, 57, nil)
	f := func(filter string, want int) {
		t.Helper()
		s.filter = filter
		if got := len(s.filteredSteps()); got != want {
			t.Errorf("%q chooses %d steps, want %d", filter, got, want)
		}
	}
	f("", 4)
	f("push", 3)
	f("PUSH spike", 1)
	f("channel:sms", 1)
	f("step:push", 3)
	f("phase:steady", 2)
	f("phase:steady channel:push", 1)
	f("nothing", 0)
	f("colour:red", 0)
	s.filter = "nothing"
	if text := s.text(); !strings.Contains(text, "no answer yet") {
		t.Errorf("no step:\n%s", text)
	}
	s.press("esc")
	if s.filter != "" {
		t.Error("esc keeps the filter")
	}
}

func TestWindowAndPanels(t *testing.T) {
	t.Parallel()
	s := open(t, 80, 24, 57, nil)
	if n := len(s.windowRows()); n != 57 {
		t.Errorf("%d seconds", n)
	}
	s.press("]")
	if n := len(s.windowRows()); n != 30 {
		t.Errorf("a window of 30 s has %d seconds", n)
	}
	s.press("[", "[")
	if windows[s.window] != 10*time.Minute {
		t.Errorf("the window is %s", windows[s.window])
	}
	s.press("tab", "tab")
	if s.panel != panelRates {
		t.Errorf("panel %d", s.panel)
	}
	s.press("8", "9", "x")
	if s.panel != panelRates {
		t.Errorf("panel %d", s.panel)
	}
	s.press("e", "esc")
	if s.panel != panelAll {
		t.Errorf("panel %d", s.panel)
	}
}

// TestDrawnOnlyWhenChanged checks that nothing is drawn between snapshots.
func TestDrawnOnlyWhenChanged(t *testing.T) {
	t.Parallel()
	s := open(t, 80, 24, 38, nil)
	s.View()
	s.frame = "kept"
	for range 3 {
		s.tick()
	}
	if got := s.View().Content; got != "kept" {
		t.Error("it was drawn again without a reason")
	}
	s.fake.Put(at(t, 39))
	s.tick()
	if got := s.View().Content; got == "kept" {
		t.Error("a new snapshot is not drawn")
	}
}

func TestStretch(t *testing.T) {
	t.Parallel()
	same := func(got []float64, want ...float64) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%v, want %v", got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%v, want %v", got, want)
			}
		}
	}
	same(resample([]float64{1, 2, 3}, 3, 3), 1, 2, 3)
	same(resample([]float64{1, 2, 3}, 6, 3), 1, 1, 2, 2, 3, 3)
	same(resample([]float64{1, 3, 5, 7}, 2, 4), 2, 6)
	same(resample([]float64{5, 6}, 4, 4), 5, 6) // 2 of 4 seconds have values, so only half of the dots do
	same(resample(nil, 4, 4))
}

// TestHeatKeepsEverything checks that each response is in exactly one cell, at any size.
func TestHeatKeepsEverything(t *testing.T) {
	t.Parallel()
	cols := at(t, 57).Heat
	var want int64
	for _, c := range cols {
		for _, n := range c.Counts {
			want += n
		}
	}
	lo, hi := heatRange(cols)
	for _, cells := range []int{1, 7, 30, 57} { // 57 seconds: each cell stands for at least one second
		for each := 1; each < 5; each++ {
			lines := (hi - lo + each) / each
			var got int64
			for _, row := range heatCells(cols, cells, 30, lo, each, lines) {
				for _, n := range row {
					got += n
				}
			}
			if got != want {
				t.Errorf("%d cells, %d buckets a line: %d, want %d", cells, each, got, want)
			}
		}
	}
}

// TestReplay checks that a replay ends with the figures of the run, that its sums grow on the way,
// and that seeking back gives the same snapshot as before.
func TestReplay(t *testing.T) {
	t.Parallel()
	r := result(t)
	clock := time.Unix(0, 0)
	p := NewReplay(r, func() time.Time { return clock })
	var sent int64
	var responses int64
	at20 := int64(0)
	for range len(r.Seconds) + 1 {
		s := p.Latest()
		if s != p.Latest() {
			t.Fatal("another pointer for the same second")
		}
		if s.Totals.Sent < sent {
			t.Errorf("at %s %d were sent, before it %d", s.Elapsed, s.Totals.Sent, sent)
		}
		sent = s.Totals.Sent
		var n int64
		for i := range s.Steps {
			n += s.Steps[i].Response.Count
		}
		if n < responses {
			t.Errorf("at %s %d responses, before it %d", s.Elapsed, n, responses)
		}
		responses = n
		if s.Elapsed == 20*time.Second {
			at20 = n
		}
		clock = clock.Add(time.Second)
	}
	end := p.Latest()
	if end.State != load.StateDone || end.Totals != r.Totals || end.Verdict != load.Valid || len(end.Steps) != len(r.Steps) || end.Steps[1].Lateness != r.Steps[1].Lateness {
		t.Errorf("the end: %+v", end.Totals)
	}
	p.Pause(true)
	p.Seek(-1000 * time.Hour)
	p.Seek(20 * time.Second)
	clock = clock.Add(time.Hour)
	back := p.Latest()
	var n int64
	for i := range back.Steps {
		n += back.Steps[i].Response.Count
	}
	if back.Elapsed != 20*time.Second || n != at20 || n == 0 {
		t.Errorf("back at %s: %d responses, want %d", back.Elapsed, n, at20)
	}
	p.Pause(false)
	p.Speed(4)
	clock = clock.Add(2 * time.Second)
	if got := p.Latest().Elapsed; got != 28*time.Second {
		t.Errorf("2 s at 4x: %s", got)
	}
	for range 20 {
		p.Speed(2)
	}
	if p.Rate() != 64 {
		t.Errorf("rate %g", p.Rate())
	}
}

func TestReplayKeys(t *testing.T) {
	t.Parallel()
	clock := time.Unix(0, 0)
	p := NewReplay(result(t), func() time.Time { return clock })
	s := open(t, 80, 24, 0, func(o *Options) { o.Source, o.Control = p, nil })
	s.press("right", "l", "space")
	clock = clock.Add(time.Minute)
	s.tick()
	if text := s.text(); !strings.Contains(text, "replay") || !strings.Contains(text, "0:10 of") || !strings.Contains(text, "paused") {
		t.Errorf("after 2 x 5 s:\n%s", text)
	}
	s.press("G")
	s.tick()
	if !strings.Contains(s.text(), "done") && !strings.Contains(s.text(), "paused") {
		t.Errorf("at the end:\n%s", s.text())
	}
	s.press("m", "Q")
	if !s.quit || s.left != LeftAtEnd {
		t.Errorf("quit %t, %v", s.quit, s.left)
	}
}

// TestReplayOfNothing checks that a run without seconds is drawn, too.
func TestReplayOfNothing(t *testing.T) {
	t.Parallel()
	p := NewReplay(&load.Result{}, nil)
	s := open(t, 80, 24, 0, func(o *Options) { o.Source, o.Control = p, nil })
	s.tick()
	if !strings.Contains(s.text(), "no second is complete yet") {
		t.Errorf("drawn:\n%s", s.text())
	}
}

// TestLines checks that each second is written once, as one line, in both formats, and without
// terminal escapes.
func TestLines(t *testing.T) {
	t.Parallel()
	for _, format := range []Format{Text, JSONL} {
		synctest.Test(t, func(t *testing.T) {
			feed := NewFeed()
			var out bytes.Buffer
			ended := make(chan error, 1)
			go func() { ended <- Lines(t.Context(), &out, feed, format, 2) }()
			bad := *at(t, 38)
			bad.Seconds = append([]load.SecondRow(nil), bad.Seconds...)
			bad.Seconds[5].Phase = "\x1b[31m\nred\u009b"
			for _, s := range []*load.Snapshot{at(t, 3), &bad, &bad, at(t, 40)} {
				feed.Put(s)
				time.Sleep(time.Second)
				synctest.Wait()
			}
			feed.Put(at(t, 63))
			feed.End()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			if len(lines) != 61 {
				t.Errorf("%s: %d lines, want 61:\n%s", format, len(lines), out.String())
			}
			for i, l := range lines {
				if strings.ContainsAny(l, "\x1b\r\u009b") {
					t.Errorf("%s: line %q", format, l)
				}
				if format == JSONL {
					var row struct {
						Type string `json:"type"`
						load.SecondRow
					}
					if err := json.Unmarshal([]byte(l), &row); err != nil || row.Type != "second" || row.Second != i+2 {
						t.Errorf("line %d is second %d of %q: %v", i, row.Second, row.Type, err)
					}
				}
			}
		})
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestLinesEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		feed := NewFeed()
		feed.Put(at(t, 3))
		if err := Lines(t.Context(), broken{}, feed, Text, 0); err == nil {
			t.Error("a broken pipe is not reported")
		}
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
		defer stop()
		if err := Lines(ctx, io.Discard, feed, Text, 0); err != nil {
			t.Error(err)
		}
	})
}

// TestRun runs the program as a terminal would: it sends keys as bytes. At the end Run restores the
// terminal.
func TestRun(t *testing.T) {
	t.Parallel()
	feed := &fake{Feed: NewFeed()}
	feed.Put(at(t, 38))
	keys, typed := io.Pipe()
	defer typed.Close()
	var out bytes.Buffer
	type end struct {
		left Left
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		left, err := Run(t.Context(), keys, &out, []string{"TERM=xterm-256color"}, Options{Source: feed, Control: feed})
		ended <- end{left, err}
	}()
	if _, err := typed.Write([]byte("qy")); err != nil {
		t.Fatal(err)
	}
	feed.End()
	select {
	case e := <-ended:
		if e.err != nil || e.left != LeftAtEnd {
			t.Errorf("%v, %v", e.left, e.err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the end of the run does not end the screen")
	}
	if s := out.String(); !strings.Contains(s, "\x1b[?1049h") || strings.LastIndex(s, "\x1b[?1049l") < strings.LastIndex(s, "\x1b[?1049h") {
		t.Errorf("the other screen is not left: %.100q ... %.100q", s, s[max(0, len(s)-100):])
	}
}

// Feed is a Source that a run fills. The zero value is not ready: use NewFeed.
type Feed struct {
	latest atomic.Pointer[load.Snapshot]
	done   chan struct{}
	once   sync.Once
}

// NewFeed returns a Feed without a snapshot.
func NewFeed() *Feed { return &Feed{done: make(chan struct{})} }

// Put publishes a snapshot. It never waits. The caller must not change the snapshot after the call.
func (f *Feed) Put(s *load.Snapshot) { f.latest.Store(s) }

// End closes the channel of Done. The caller must not call Put after End.
func (f *Feed) End() { f.once.Do(func() { close(f.done) }) }

// Latest implements Source.
func (f *Feed) Latest() *load.Snapshot { return f.latest.Load() }

// Done implements Source.
func (f *Feed) Done() <-chan struct{} { return f.done }
