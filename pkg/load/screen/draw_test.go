package screen

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/report"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// result returns the run from a file in the testdata of package report.
func result(t testing.TB) *load.Result {
	t.Helper()
	r, err := report.Store{}.Open("../report/testdata/run.json")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// at returns the snapshot of the run after the given number of seconds.
func at(t testing.TB, second int) *load.Snapshot {
	t.Helper()
	if s, ok := snapshots.Load(second); ok {
		again := *s.(*load.Snapshot)
		return &again
	}
	clock := time.Unix(0, 0)
	p := NewReplay(result(t), func() time.Time { return clock })
	p.Pause(true)
	p.Seek(time.Duration(second) * time.Second)
	s := *p.Latest()
	s.Verdict = load.Valid
	s.Server = load.Server{Known: true, Lag: map[string]int64{"push-live": 812, "sms-live": 4}, DLQ: 3, Circuits: map[string]int64{"apns": 1}, TimerLateness: load.Quantiles{Count: 60, P99: 9e6}}
	snapshots.Store(second, &s)
	again := s
	return &again
}

var snapshots sync.Map // second -> *load.Snapshot

// fake is a run that does nothing. It stores the calls of its methods.
type fake struct {
	*Feed
	stops   int
	marks   []string
	steered []string
}

func (f *fake) Pause(paused bool)  { f.steered = append(f.steered, fmt.Sprintf("paused %t", paused)) }
func (f *fake) Pace(times float64) { f.steered = append(f.steered, fmt.Sprintf("times %.2f", times)) }

// steerable lets the user change the arrivals of the run. The run is already paused.
func steerable(o *Options) {
	f := o.Source.(*fake)
	snap := *f.Latest()
	snap.Verdict, snap.Steer = load.Inconclusive, &load.SteerState{Pace: 1.1, Paused: true, Changed: true}
	snap.Markers = append(append([]load.Marker(nil), snap.Markers...),
		load.Marker{At: 40 * time.Second, Kind: "steer", Text: "rate 110%"}, load.Marker{At: 46 * time.Second, Kind: "steer", Text: "paused"})
	f.Put(&snap)
	o.Steer = f
}

// withAgents adds three agents to the run. One agent is the limit, and one agent is lost.
func withAgents(o *Options) {
	f := o.Source.(*fake)
	snap := *f.Latest()
	snap.Agents = []load.Agent{
		{Name: "load1:7431", State: load.AgentRunning, Rate: 401, Offset: -1500 * time.Microsecond, Verdict: load.Valid},
		{Name: "load2:7431", State: load.AgentRunning, Rate: 389, Offset: 40 * time.Microsecond, Verdict: load.GeneratorBound},
		{Name: "load3:7431", State: load.AgentLost, LostAt: 27 * time.Second, LostBecause: "it was silent for 3s"},
	}
	f.Put(&snap)
}

func (f *fake) Stop()            { f.stops++ }
func (f *fake) Mark(text string) { f.marks = append(f.marks, text) }

// screen is a model with a clock that does not advance.
type screen struct {
	*model
	t    testing.TB
	fake *fake
	now  time.Time
	quit bool
}

func open(t testing.TB, w, h, second int, change func(*Options)) *screen {
	t.Helper()
	s := &screen{t: t, fake: &fake{Feed: NewFeed()}, now: time.Unix(1_000_000, 0)}
	if second > 0 {
		s.fake.Put(at(t, second))
	}
	o := Options{Source: s.fake, Control: s.fake, Name: "steady-then-spike", Now: func() time.Time { return s.now }}
	if change != nil {
		change(&o)
	}
	s.model = newModel(o)
	s.Update(tea.WindowSizeMsg{Width: w, Height: h})
	return s
}

// press types keys by their names. A longer text that names no key is typed letter by letter.
func (s *screen) press(keys ...string) {
	s.t.Helper()
	special := map[string]tea.KeyPressMsg{
		"enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "tab": {Code: tea.KeyTab}, "space": {Code: tea.KeySpace, Text: " "},
		"left": {Code: tea.KeyLeft}, "right": {Code: tea.KeyRight}, "ctrl+c": {Code: 'c', Mod: tea.ModCtrl}, "ctrl+u": {Code: 'u', Mod: tea.ModCtrl},
	}
	for _, k := range keys {
		list := []tea.KeyPressMsg{special[k]}
		if _, ok := special[k]; !ok {
			list = nil
			for _, r := range k {
				list = append(list, tea.KeyPressMsg{Code: r, Text: string(r)})
			}
		}
		for _, msg := range list {
			_, cmd := s.Update(msg)
			if cmd != nil {
				if _, ok := cmd().(tea.QuitMsg); ok {
					s.quit = true
				}
			}
		}
	}
}

func (s *screen) tick() {
	_, cmd := s.Update(tickMsg{})
	_ = cmd
}

// text is a frame without its colours.
func (s *screen) text() string {
	lines := strings.Split(ansi.Strip(s.draw()), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// scenes are the frames that are compared with testdata/*.txt. UPDATE_GOLDEN=1 writes the files.
var scenes = []struct {
	name   string
	second int
	change func(*Options)
	keys   []string
}{
	{"all", 38, nil, nil},
	{"spike", 57, nil, nil},
	{"first", 3, nil, nil},
	{"none", 0, nil, nil},
	{"stages", 48, nil, []string{"1"}},
	{"rates", 48, nil, []string{"2"}},
	{"backlog", 57, nil, []string{"3"}},
	{"latency", 48, nil, []string{"4"}},
	{"ledger", 48, nil, []string{"5"}},
	{"errors", 57, nil, []string{"e"}},
	{"generator", 48, nil, []string{"7"}},
	{"filter", 48, nil, []string{"/", "channel:sms", "enter"}},
	{"window", 48, nil, []string{"]"}},
	{"frozen", 48, nil, []string{"space"}},
	{"mark", 48, nil, []string{"m", "deploy"}},
	{"stop", 48, nil, []string{"q"}},
	{"steer", 48, func(o *Options) { o.Steer = o.Source.(*fake) }, []string{"p"}},
	{"paused", 48, steerable, nil},
	{"paused-stages", 48, steerable, []string{"1"}},
	{"agents", 48, withAgents, nil},
	{"agents-generator", 48, withAgents, []string{"7"}},
	{"help", 48, nil, []string{"?"}},
	{"ascii", 48, func(o *Options) { o.ASCII = true }, nil},
}

func TestFrames(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{80, 24}, {160, 48}} {
		for _, sc := range scenes {
			s := open(t, size[0], size[1], sc.second, sc.change)
			s.press(sc.keys...)
			frame := s.draw()
			for i, l := range strings.Split(frame, "\n") {
				if w := ansi.StringWidth(l); w != size[0] {
					t.Errorf("%s: line %d is %d wide", sc.name, i, w)
				}
			}
			if n := strings.Count(frame, "\n") + 1; n != size[1] {
				t.Errorf("%s: %d lines", sc.name, n)
			}
			name := filepath.Join("testdata", fmt.Sprintf("%s-%dx%d.txt", sc.name, size[0], size[1]))
			if os.Getenv("UPDATE_GOLDEN") != "" {
				if err := os.WriteFile(name, []byte(s.text()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.text(); got != string(want) {
				t.Errorf("%s is not as it was (UPDATE_GOLDEN=1 writes it):\n%s", name, got)
			}
		}
	}
}

// TestAnySize draws every scene at extreme sizes.
func TestAnySize(t *testing.T) {
	t.Parallel()
	for _, sc := range scenes {
		s := open(t, 80, 24, sc.second, sc.change)
		s.press(sc.keys...)
		for _, w := range []int{0, 1, 2, 7, 8, 20, 43, 44, 55, 56, 59, 60, 81, 119, 120, 250} {
			for _, h := range []int{0, 1, 2, 3, 4, 5, 7, 10, 15, 16, 21, 34, 60} {
				s.width, s.height = w, h
				frame := s.draw()
				if w == 0 || h == 0 {
					continue
				}
				if n := strings.Count(frame, "\n") + 1; n != h {
					t.Fatalf("%s at %dx%d: %d lines", sc.name, w, h, n)
				}
				for _, l := range strings.Split(frame, "\n") {
					if n := ansi.StringWidth(l); n != w {
						t.Fatalf("%s at %dx%d: a line is %d wide: %q", sc.name, w, h, n, l)
					}
				}
			}
		}
	}
}

// TestASCII checks that only ASCII is drawn without UTF-8.
func TestASCII(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{80, 24}, {160, 48}} {
		s := open(t, size[0], size[1], 48, func(o *Options) { o.ASCII = true })
		for p := range panels {
			s.press(fmt.Sprint(int(p)))
			for _, r := range s.text() {
				if r > 127 {
					t.Fatalf("panel %d draws %q:\n%s", p, r, s.text())
				}
			}
		}
	}
}

// TestNamesAreHarmless checks that no name of a scenario or server reaches the terminal as an escape.
func TestNamesAreHarmless(t *testing.T) {
	t.Parallel()
	const bad = "\x1b]0;owned\a\x1b[2J\u202e\u009b31m\r\n\tx"
	snap := *at(t, 48)
	snap.Scenario, snap.Verdict, snap.State, snap.Phase.Name = bad, bad, bad, bad
	snap.Steps = []load.StepSnapshot{{Name: bad, Phase: bad, Target: bad, Channel: bad, Category: bad, Arrival: bad, Response: load.Quantiles{Count: 1}}}
	snap.Errors = []load.ErrorCount{{Class: bad, Code: bad, Step: bad, Count: 4}}
	snap.Thresholds = []load.ThresholdState{{Expr: bad, Known: true}}
	snap.Markers = []load.Marker{{Kind: bad, Text: bad}, {Kind: "fault", Text: bad}}
	snap.Seconds = append([]load.SecondRow(nil), snap.Seconds...)
	snap.Seconds[0].Phase = bad
	for _, size := range [][2]int{{80, 24}, {160, 48}} {
		s := open(t, size[0], size[1], 0, nil)
		s.fake.Put(&snap)
		s.tick()
		for p := range panels {
			s.press(fmt.Sprint(int(p)))
			for i, l := range strings.Split(ansi.Strip(s.draw()), "\n") {
				if notify.HasControl(l) || ansi.StringWidth(l) != size[0] {
					t.Fatalf("panel %d, line %d: %q", p, i, l)
				}
			}
			if got := s.View(); notify.HasControl(got.WindowTitle) {
				t.Errorf("the title is %q", got.WindowTitle)
			}
			// The only escapes are the colours of the screen.
			for rest := s.draw(); ; {
				_, after, found := strings.Cut(rest, "\x1b")
				if !found {
					break
				}
				if !strings.HasPrefix(after, "[") || strings.Trim(after[1:strings.IndexAny(after, "mHJKABCDl")], "0123456789;:") != "" {
					t.Fatalf("panel %d has the escape %.20q", p, after)
				}
				rest = after
			}
		}
	}
}

// BenchmarkView draws a frame from a new snapshot. The screen does this four times a second.
func BenchmarkView(b *testing.B) {
	for _, size := range [][2]int{{80, 24}, {160, 48}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			s := open(b, size[0], size[1], 57, nil)
			snap := long(s.snapshot)
			s.fake.Put(snap)
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				next := *snap
				s.fake.Put(&next)
				s.Update(tickMsg{})
				s.View()
			}
			// Report CPU time, because on a busy machine the elapsed time includes other processes.
			b.ReportMetric((cpu(b)-before).Seconds()/float64(b.N)*4*100, "%core-at-4Hz")
		})
	}
}

// cpu returns the CPU time that this process has used.
func cpu(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestWidth compares the fast count of columns with the exact count.
func TestWidth(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "abc", "\x1b[1;38;2;1;2;3mabc\x1b[m", "⣀⣀ ▶✓✗…·│─█░▒▓", "日本", "e\u0301", "▶\ufe0f", "\x1b]0;x\aabc", "\x1b[", "\x1b[3", "a\x1b[2Jb", "👩‍👩‍👧", "\x1b[1mé\x1b[0m"} {
		if got, want := paint.Width(s), ansi.StringWidth(s); got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
}

// long returns a snapshot with load.KeepSeconds seconds, the most that a snapshot can have.
func long(s *load.Snapshot) *load.Snapshot {
	out := *s
	out.Seconds, out.Heat = nil, nil
	for i := range load.KeepSeconds {
		r, h := s.Seconds[i%len(s.Seconds)], s.Heat[i%len(s.Heat)]
		r.Second, h.Second = i, i
		out.Seconds, out.Heat = append(out.Seconds, r), append(out.Heat, h)
	}
	out.Elapsed = load.KeepSeconds * time.Second
	return &out
}
