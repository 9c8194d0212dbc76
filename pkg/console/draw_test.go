package console

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// text is a frame without its colours.
func (p *page) text() string {
	lines := strings.Split(ansi.Strip(p.draw()), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// scenes are the frames held against testdata/*.txt: UPDATE_GOLDEN=1 writes them.
var scenes = []struct {
	name   string
	change func(*Options)
	keys   []string
}{
	{"overview", nil, nil},
	{"letters", nil, []string{"2", "j", "j"}},
	{"letter", nil, []string{"2", "enter"}},
	{"replay", nil, []string{"2", "/", "ctrl+u", "channel:email code:sendgrid_bad_request", "enter", "R"}},
	{"jobs", nil, []string{"3", "j"}},
	{"job", nil, []string{"3", "enter"}},
	{"circuits", nil, []string{"4", "j"}},
	{"hold", func(o *Options) { o.Protected = true }, []string{"4", "C"}},
	{"schedules", nil, []string{"5"}},
	{"help", nil, []string{"?"}},
	{"readonly", func(o *Options) { o.ReadOnly = "the token lacks the scope operate"; o.ASCII = true }, []string{"3"}},
	{"filter", nil, []string{"2", "/", "ctrl+u", "colour:red", "enter"}},
}

func TestFrames(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{80, 24}, {160, 48}} {
		for _, s := range scenes {
			p := open(t, newFake(), size[0], size[1], s.change)
			p.press(s.keys...)
			frame := p.draw()
			for i, l := range strings.Split(frame, "\n") {
				if w := ansi.StringWidth(l); w != size[0] {
					t.Errorf("%s: line %d is %d wide", s.name, i, w)
				}
			}
			if n := strings.Count(frame, "\n") + 1; n != size[1] {
				t.Errorf("%s: %d lines", s.name, n)
			}
			name := filepath.Join("testdata", fmt.Sprintf("%s-%dx%d.txt", s.name, size[0], size[1]))
			if os.Getenv("UPDATE_GOLDEN") != "" {
				if err := os.WriteFile(name, []byte(p.text()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.text(); got != string(want) {
				t.Errorf("%s is not as it was (UPDATE_GOLDEN=1 writes it):\n%s", name, got)
			}
		}
	}
}

// TestAnySize draws every page at sizes nobody has.
func TestAnySize(t *testing.T) {
	t.Parallel()
	for _, s := range scenes {
		p := open(t, newFake(), 80, 24, s.change)
		p.press(s.keys...)
		for _, w := range []int{0, 1, 2, 3, 7, 8, 9, 20, 35, 40, 43, 59, 60, 61, 81, 200} {
			for _, h := range []int{0, 1, 2, 3, 4, 5, 7, 10, 17, 18, 24, 60} {
				p.width, p.height = w, h
				frame := p.draw()
				if w == 0 || h == 0 {
					continue
				}
				if n := strings.Count(frame, "\n") + 1; n != h {
					t.Fatalf("%s at %dx%d: %d lines", s.name, w, h, n)
				}
				for _, l := range strings.Split(frame, "\n") {
					if n := ansi.StringWidth(l); n != w {
						t.Fatalf("%s at %dx%d: a line is %d wide: %q", s.name, w, h, n, l)
					}
				}
			}
		}
	}
}

// TestStatesWithoutColour: what differs in colour differs in words or signs too.
func TestStatesWithoutColour(t *testing.T) {
	t.Parallel()
	for _, ascii := range []bool{false, true} {
		p := open(t, newFake(), 80, 24, func(o *Options) { o.ASCII = ascii })
		seen := map[string]string{}
		for _, s := range []string{"waiting", "running", "paused", "stopped", "failed", "done", "cancelled"} {
			c := jobState(p.model, s)
			sign, word, _ := strings.Cut(c.text, " ")
			if word != s || c.style == nil {
				t.Errorf("job %s: %q", s, c.text)
			}
			if other, ok := seen[sign]; ok {
				t.Errorf("%s and %s have the sign %q", s, other, sign)
			}
			seen[sign] = s
		}
		for _, s := range []string{"closed", "open", "half-open"} {
			if c := circuitCells(p.model, &api.Circuit{State: s})[1]; !strings.HasSuffix(c.text, " "+s) {
				t.Errorf("circuit %s: %q", s, c.text)
			}
		}
	}
	p := open(t, newFake(), 80, 24, func(o *Options) { o.ASCII = true })
	for t2 := range tabs {
		p.press(fmt.Sprint(int(t2) + 1))
		for _, r := range p.text() {
			if r > 127 {
				t.Fatalf("page %d draws %q without UTF-8:\n%s", t2+1, r, p.text())
			}
		}
	}
}

// TestHostileText: what users wrote neither steers the terminal nor moves what
// stands beside it.
func TestHostileText(t *testing.T) {
	t.Parallel()
	evil := "\x1b[2J\x1b]0;owned\a\x9b31m\u202egnp.exe\u2066\r\n\t\x00\xff界界👩‍👩‍👧é"
	f := newFake()
	for i := range f.letters {
		l := &f.letters[i]
		l.Caller, l.Code, l.Template, l.Provider, l.Class, l.UserID = evil, evil, evil, evil, evil, evil
		l.Extra = map[string]any{evil: evil}
	}
	f.circuit[0].Name = "caller:" + evil
	f.jobs[0].Why, f.jobs[0].By, f.jobs[0].Reason = evil, evil, evil
	for _, keys := range [][]string{{"1"}, {"2"}, {"2", "enter"}, {"3"}, {"3", "enter"}, {"4"}, {"4", "enter"}, {"4", "R"}, {"2", "/", evil, "enter"}} {
		p := open(t, f, 160, 48, func(o *Options) { o.Context, o.URL, o.ReadOnly = evil, evil, "" })
		p.press(keys...)
		plain := ansi.Strip(p.draw())
		if i := strings.IndexFunc(plain, func(r rune) bool { return r != '\n' && notify.IsControl(r) }); i >= 0 {
			t.Errorf("%v draws %q", keys, plain[max(0, i-20):min(len(plain), i+20)])
		}
		for _, l := range strings.Split(p.draw(), "\n") {
			if w := ansi.StringWidth(l); w != 160 {
				t.Errorf("%v: a line is %d wide: %q", keys, w, l)
			}
		}
		if v := p.View(); strings.ContainsFunc(v.WindowTitle, notify.IsControl) {
			t.Errorf("title %q", v.WindowTitle)
		}
	}
}

func TestChart(t *testing.T) {
	t.Parallel()
	st := paint.New(false)
	lines, peak := st.Bars([]float64{9, 0, 1, 4, 8}, 4, 2)
	if peak != 8 || lines[0] != "   █" || lines[1] != " ▂██" {
		t.Errorf("peak %v, %q", peak, lines)
	}
	if lines, peak = st.Bars(nil, 3, 1); peak != 0 || lines[0] != "   " {
		t.Errorf("peak %v, %q", peak, lines)
	}
	for share, want := range map[float64]string{0: "░░░░", 0.001: "█░░░", 0.5: "██░░", 7: "████", -1: "░░░░"} {
		if got := st.Bar(share, 4); got != want {
			t.Errorf("bar of %v: %s, want %s", share, got, want)
		}
	}
	if got := spanText(9*time.Second + 900*time.Millisecond); got != "9s" {
		t.Error(got)
	}
}

// TestWrap: no line of a list begins with the comma that belongs to the one before.
func TestWrap(t *testing.T) {
	t.Parallel()
	st := paint.New(true)
	for w := 40; w < 170; w++ {
		for _, l := range wrap(&st, "filters", strings.Join(api.LetterWords(), ":, ")+":, and so on", w) {
			if rest := strings.TrimSpace(strings.TrimPrefix(ansi.Strip(l), " filters")); rest == "" || rest[0] == ',' {
				t.Fatalf("at %d columns: %q", w, l)
			}
		}
	}
}
