package timer

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/faulty"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios print into their files")

// TestScenarios plays the files of testdata in simulated time. A file tells the life of a sweeper
// in commands. A paragraph of the file has commands and, after a line of dashes, their output. See
// play for the commands.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var got string
			synctest.Test(t, func(t *testing.T) { got = playFile(t, string(text)) })
			if got == string(text) {
				return
			}
			if *rewrite {
				if err := os.WriteFile(name, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			for i, line := range strings.Split(got, "\n") {
				if want := strings.Split(string(text), "\n"); i >= len(want) || want[i] != line {
					t.Fatalf("line %d: %q, want %q\nall of it:\n%s", i+1, line, append(want, "")[min(i, len(want))], got)
				}
			}
			t.Fatal("lines are missing")
		})
	}
}

// playFile plays a file. It returns the file's text with the output that the commands now have.
func playFile(t *testing.T, text string) string {
	s := newSim(t)
	p := &player{s: s, v: s.service(), named: map[string]schedule{}}
	var out []string
	for _, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		commands, _, _ := strings.Cut(paragraph, "\n----")
		var printed []string
		for _, line := range strings.Split(commands, "\n") {
			if line != "" && line[0] != '#' {
				printed = append(printed, p.play(t, strings.Fields(line))...)
			}
		}
		if len(printed) > 0 {
			commands += "\n----\n" + strings.Join(printed, "\n")
		}
		out = append(out, commands)
	}
	s.close()
	return strings.Join(out, "\n\n") + "\n"
}

// player plays the commands of a scenario.
type player struct {
	s     *sim
	v     *service
	named map[string]schedule
	undo  func()
}

// play runs one command:
//
//	start NAME...            engines begin to live
//	crash WHO / stop WHO     one dies without a word, or shuts down
//	pause WHO / resume WHO   it begins no call any more, and goes on
//	clock step WHO D         its wall clock is off by D
//	schedule X in D [of N]   a schedule of N chunks, by an API process
//	cancel X / reschedule X in D
//	advance D                time passes
//	delay METHOD D           the API's next call of it takes so long
//	WHO delay METHOD D       the same of an engine
//	down WHAT / up           Timers, Schedules, Queue, Lease or log
//	empty lease              as a Redis that lost its memory
//	fired X                  prints how often, and how late the first time
//	came X                   the same, where the times are a matter of luck
//	owners / rows / counts   prints
//
// WHO is a name or "leader", the owner of most shards.
func (p *player) play(t *testing.T, w []string) []string {
	t.Helper()
	s := p.s
	duration := func(text string) time.Duration {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("%v: %v", w, err)
		}
		return d
	}
	who := func(name string) *node {
		if name == "leader" {
			return s.owner()
		}
		if s.nodes[name] == nil {
			t.Fatalf("%v: there is no %s", w, name)
		}
		return s.nodes[name]
	}
	switch w[0] {
	case "start":
		for _, name := range w[1:] {
			s.start(name)
		}
	case "crash":
		who(w[1]).crash()
	case "stop":
		who(w[1]).halt()
	case "pause":
		who(w[1]).freeze()
	case "resume":
		who(w[1]).thaw()
	case "clock":
		who(w[2]).step.Store(int64(duration(w[3])))
	case "schedule":
		chunks := 1
		if len(w) > 4 {
			chunks, _ = strconv.Atoi(w[5])
		}
		at := time.Now().Add(duration(w[3])).UnixMilli()
		p.later(t, w[1], chunks, at)
	case "cancel":
		return []string{w[1] + ": " + string(p.v.cancel(p.named[w[1]]))}
	case "reschedule":
		at := time.Now().Add(duration(w[3])).UnixMilli()
		return []string{w[1] + ": " + string(p.v.reschedule(p.named[w[1]], at))}
	case "advance":
		wait(duration(w[1]))
	case "delay":
		p.v.plan.Add(faulty.Rule{Method: w[1], Times: 1, Hook: sleepHook(duration(w[2]))})
	case "down":
		p.down(w[1])
	case "up":
		p.undo()
	case "empty":
		s.lease.empty()
	case "fired":
		return []string{w[1] + ": " + p.fired(w[1])}
	case "came":
		return []string{w[1] + ": " + strings.NewReplacer("once", "came", "again", "came").Replace(p.fired(w[1]))}
	case "owners":
		var out []string
		for name, k := range s.owners() {
			out = append(out, fmt.Sprintf("%s owns %d", name, k))
		}
		sort.Strings(out)
		return out
	case "rows":
		return []string{fmt.Sprintf("%d rows", s.rows.left())}
	case "counts":
		st := s.owner().e.Stats()
		return []string{fmt.Sprintf("late rows %d, rehomed %d, dropped %d, swaps %d", st.LateRows, st.Rehomed+p.v.w.counters.rehomed.Load(), st.Dropped, st.HeadSwaps)}
	default:
		if len(w) == 4 && w[1] == "delay" {
			who(w[0]).plan.Add(faulty.Rule{Method: w[2], Times: 1, Hook: sleepHook(duration(w[3]))})
			break
		}
		t.Fatalf("what is %v?", w)
	}
	return nil
}

// later begins to create a schedule in a goroutine, because that may take long.
func (p *player) later(t *testing.T, name string, chunks int, at int64) {
	p.named[name] = schedule{baseOf(p.v.made + 1), chunks}
	go func() {
		if _, err := p.v.create(chunks, at); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}()
	synctest.Wait()
}

func (p *player) down(what string) {
	if what == "log" {
		p.s.setLogDown(true)
		p.undo = func() { p.s.setLogDown(false) }
		return
	}
	var undo []func()
	rule := faulty.Rule{Method: what + ".*", Err: faulty.ErrDown}
	for _, n := range p.s.nodes {
		undo = append(undo, n.plan.Add(rule))
	}
	undo = append(undo, p.v.plan.Add(rule))
	p.undo = func() {
		for _, f := range undo {
			f()
		}
	}
}

// fired returns how often each chunk was released, and how late it was released first.
func (p *player) fired(name string) string {
	x := p.named[name]
	var said []string
	for gen := range uint32(4) {
		n, most, late := 0, 0, time.Duration(0)
		for c := range x.chunks {
			if got := p.s.of(rowOf(x.base, c, gen)); len(got) > 0 {
				n++
				most = max(most, len(got))
				late = max(late, got[0].late)
			}
		}
		if n == 0 {
			continue
		}
		line := "once"
		if most > 1 {
			line = "again" // after a crash: the same id
		}
		if n < x.chunks {
			line = fmt.Sprintf("%d of %d chunks", n, x.chunks)
		}
		if gen > 0 {
			line += fmt.Sprintf(", generation %d", gen)
		}
		if late < 50*time.Millisecond {
			line += ", on time"
		} else {
			line += fmt.Sprintf(", up to %v late", (late + time.Second - 1).Truncate(time.Second))
		}
		said = append(said, line)
	}
	if said == nil {
		return "not yet"
	}
	return strings.Join(said, "; ")
}
