package main

import (
	"strings"
	"testing"
	"time"
)

// run returns the figures of a step with n processes and 1,000 messages. The rate is perSecond
// messages a second. The parameter used holds the number of cores that each group of processes
// uses.
func run(n int, perSecond float64, used map[string]float64) figures {
	f := figures{load: "singles", processes: n, count: 1000, share: 0.1, machine: 2}
	began := time.Unix(1_000_000, 0)
	f.from = began
	for i := 0; ; i++ {
		at := float64(i)
		s := sample{at: began.Add(time.Duration(i) * time.Second), done: min(int64(at*perSecond), 1000), cpu: map[string]time.Duration{}}
		for name, cores := range used {
			s.cpu[name] = time.Duration(at * cores * float64(time.Second))
		}
		f.samples = append(f.samples, s)
		if s.done == 1000 {
			break
		}
	}
	f.calm, f.rss = f.samples[:2], []int{100}
	f.ended = f.count
	return f
}

func TestRate(t *testing.T) {
	f := run(1, 80, nil)
	if got := f.perSecond(); got < 79.9 || got > 80.1 {
		t.Errorf("%.2f a second, want 80", got)
	}
	// A slow last message does not change the rate.
	last := f.samples[len(f.samples)-1]
	last.done, f.samples[len(f.samples)-1].done = 1000, 999
	last.at = last.at.Add(time.Minute)
	f.samples = append(f.samples, last)
	if got := f.perSecond(); got < 79.9 || got > 80.1 {
		t.Errorf("%.2f a second with a slow end, want 80", got)
	}
	if got := f.timeOf(1000); !got.Equal(last.at) {
		t.Errorf("all were done at %s, want %s", got, last.at)
	}
}

func TestVerdict(t *testing.T) {
	lost := run(2, 80, nil)
	lost.lost = 1
	twice := run(2, 80, nil)
	twice.twice = 1
	for _, c := range []struct {
		name  string
		steps []figures
		short bool
		ok    bool
		line  string
	}{
		{"in step", []figures{run(1, 40, nil), run(2, 80, nil), run(4, 130, nil)}, false, true, "singles=1.00,2.00,3.25 slow=none"},
		{"too slow", []figures{run(1, 40, nil), run(2, 60, nil)}, false, false, "singles=1.00,1.50(none) slow=singles:2"},
		{"too slow in the short form", []figures{run(1, 40, nil), run(2, 60, nil)}, true, true, "slow=singles:2"},
		{"the machine is full, Cassandra most", []figures{run(1, 40, nil), run(2, 60, map[string]float64{processes: 0.2, "cassandra": 1.2, others: 0.55})}, false, true, "singles=1.00,1.50(cassandra) slow=none"},
		{"the machine is full, of processes that are not ours", []figures{run(1, 40, nil), run(2, 60, map[string]float64{"cassandra": 0.5, others: 1.45})}, false, false, "singles=1.00,1.50(others) slow=singles:2"},
		{"Redis has its one core", []figures{run(1, 40, nil), run(2, 60, map[string]float64{"redis": 0.97})}, false, true, "singles=1.00,1.50(redis) slow=none"},
		{"one is lost", []figures{run(1, 40, nil), lost}, true, false, ""},
		{"one is sent twice", []figures{run(1, 40, nil), twice}, true, false, ""},
		{"nothing was shown", nil, true, false, ""},
	} {
		v := verdict{judge: !c.short}
		for _, f := range c.steps {
			v.add(f)
		}
		line, ok := v.line()
		if ok != c.ok || !strings.Contains(line, c.line) {
			t.Errorf("%s: %s, ok %v; want %s, ok %v", c.name, line, ok, c.line, c.ok)
		}
	}
}

func TestTable(t *testing.T) {
	used := func(n float64) map[string]float64 {
		return map[string]float64{processes: 0.1 * n, "kafka": 0.05, "cassandra": 0.1 * n}
	}
	text := table([]figures{run(1, 40, used(1)), run(2, 80, used(2)), run(4, 160, used(4))})
	for _, want := range []string{
		"| singles | 1 | 2 | 4 | with the number of processes |",
		"| messages ended a second | 40 | 80 | 160 | grows |",
		"| cores of Kafka | 0.05 | 0.05 | 0.05 | stays |",
		"| us of processor time of the processes for each message | 2500 | 2500 | 2500 | stays |",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
	for _, c := range []struct {
		from, to float64
		want     string
	}{{1, 4, "grows"}, {1, 2, "grows less"}, {1, 1.2, "stays"}, {4, 1, "falls"}, {2, 1, "falls less"}, {0, 1, ""}} {
		if got := trend(c.from, c.to, 4); got != c.want {
			t.Errorf("from %g to %g with 4 times the processes: %q, want %q", c.from, c.to, got, c.want)
		}
	}
}
