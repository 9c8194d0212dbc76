package load

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestSchedules checks that every shape is a pure function: dueTime never falls, countDue is its
// inverse, and the count over the phase is the integral of the rate.
func TestSchedules(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(file, []byte("# seconds\n0\n0.5\n0.5\n2.25\n9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	counts := filepath.Join(t.TempDir(), "counts")
	if err := os.WriteFile(counts, []byte("0\n0.5 300\n0.5 12 40\n0.53 7 20\n2 1\n2.25 1000\n9.99 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const length = 10 * time.Second
	sec := Duration(time.Second)
	for name, c := range map[string]struct {
		a     Arrival
		size  int
		total float64 // number of requests due within length
		slack float64
	}{
		"constant": {Arrival{Shape: "constant", Rate: 333}, 1, 3330, 1},
		"sizes":    {Arrival{Shape: "constant", Rate: 5e6}, 50_000, 1000, 1},
		"poisson":  {Arrival{Shape: "poisson", Rate: 1000}, 1, 10_000, 500},
		"ramp":     {Arrival{Shape: "ramp", From: 10, To: 1000}, 1, 5050, 1},
		"down":     {Arrival{Shape: "ramp", From: 1000, To: 0, Over: 5 * sec}, 1, 2500, 1},
		"steps":    {Arrival{Shape: "steps", Levels: []Level{{100, 2 * sec}, {0, 3 * sec}, {500, sec}}}, 1, 200 + 2500, 2},
		"spike":    {Arrival{Shape: "spike", Rate: 10, Peak: 1000, At: 4 * sec, For: sec}, 1, 90 + 1000, 2},
		"sine":     {Arrival{Shape: "sine", Rate: 100, Peak: 300, Period: 2 * sec}, 1, 2000, 2},
		"tenth":    {Arrival{Shape: "trace", File: counts, Slot: sec, Factor: 0.1}, 1, 132, 0},
		"thrice":   {Arrival{Shape: "trace", File: file, Slot: sec, Factor: 3}, 1, 15, 1},
		"trace":    {Arrival{Shape: "trace", File: file, Factor: 1}, 1, 5, 0},
		"counts":   {Arrival{Shape: "trace", File: counts, Slot: Duration(10 * time.Nanosecond), Factor: 1}, 1, 1326, 0},
		"slots":    {Arrival{Shape: "trace", File: counts, Slot: sec, Factor: 1}, 1, 1322, 0},
		"random":   {Arrival{Shape: "ramp", From: 10, To: 1000, Poisson: true}, 1, 5050, 400},
	} {
		s, err := newSchedule(&c.a, c.size, length, 42)
		if err != nil {
			t.Fatal(name, err)
		}
		n := s.countDue(length - 1)
		if math.Abs(float64(n)-c.total) > c.slack {
			t.Errorf("%s: %d requests in %v, want %v", name, n, length, c.total)
		}
		last := time.Duration(-1)
		for i := range n {
			at := s.dueTime(i)
			if at < last || at >= length {
				t.Fatalf("%s: request %d at %v after one at %v", name, i, at, last)
			}
			last = at
			if i%97 == 0 {
				if got := s.countDue(at); got <= i {
					t.Fatalf("%s: by(at(%d)) = %d", name, i, got)
				}
				if got := s.countDue(at - 1); got > i {
					t.Fatalf("%s: by(at(%d)-1) = %d", name, i, got)
				}
			}
		}
		// A second schedule gives the same due times, even if the calls have another order.
		other, err := newSchedule(&c.a, c.size, length, 42)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range []int64{n - 1, n / 2, 0, n / 3, n - 1} {
			if a, b := s.dueTime(i), other.dueTime(i); a != b {
				t.Errorf("%s: request %d at %v and at %v", name, i, a, b)
			}
		}
		if got := s.countDue(-1); got != 0 {
			t.Errorf("%s: %d before the beginning", name, got)
		}
	}
}

// TestPoissonGaps checks that the gaps are distributed exponentially.
func TestPoissonGaps(t *testing.T) {
	t.Parallel()
	s, err := newSchedule(&Arrival{Shape: "poisson", Rate: 1e6}, 1, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	const n = 20_000
	var short, long int
	last := time.Duration(0)
	for i := range int64(n) {
		at := s.dueTime(i)
		switch gap := at - last; {
		case gap < 693: // median of an exponential distribution with a mean of 1,000 ns
			short++
		case gap > 2303: // a tenth of the gaps are longer than this
			long++
		}
		last = at
	}
	if short < n*48/100 || short > n*52/100 || long < n*9/100 || long > n*11/100 {
		t.Errorf("%d of %d gaps below the median, %d above the highest tenth", short, n, long)
	}
	other, _ := newSchedule(&Arrival{Shape: "poisson", Rate: 1e6}, 1, 0, 2)
	if other.dueTime(100) == s.dueTime(100) {
		t.Error("the seed does not matter")
	}
}

// TestScheduleIsExact checks that the rate is not rounded to an interval of whole nanoseconds. 3M/s
// for an hour is 10.8 billion messages.
func TestScheduleIsExact(t *testing.T) {
	t.Parallel()
	s, err := newSchedule(&Arrival{Shape: "constant", Rate: 3e6}, 1, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.dueTime(3e6 * 3600); got != time.Hour {
		t.Errorf("message 10.8 billion is due at %v", got)
	}
}

func TestTraceRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"1\nx\n", "2\n1\n", "-1\n", "NaN\n", "1 0\n", "1 x\n", "1 2 0\n", "1 2 3 4\n", "1 1000000000000\n2 1\n"} {
		file := filepath.Join(t.TempDir(), "trace")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readTrace(file, time.Second, 1); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// TestTraceOfManyRequests checks that a line with many requests needs no memory per request, and
// that products of times and counts do not overflow.
func TestTraceOfManyRequests(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(file, []byte("0 600000000000\n3600 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tr, err := readTrace(file, time.Hour, 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := tr.dueTime(300_000_000_000); got != 30*time.Minute {
		t.Errorf("the middle one is due at %v", got)
	}
	if got := tr.countDue(time.Hour - 1); got != 600_000_000_000 {
		t.Errorf("%d due before the end", got)
	}
	if got := tr.dueTime(600_000_000_002); got != never {
		t.Errorf("one behind the last at %v", got)
	}
}

// TestTraceSizes checks that requests of a trace have the sizes of their lines in every segment, and
// that the intended messages count them. Each message has its own number, without gaps.
func TestTraceSizes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(file, []byte("0.1 3 10\n0.1 2 7\n0.4\n0.9 5 900\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const all = 3*10 + 2*7 + 50 + 5*50 // the line with size 900 counts as 50, the size of the step
	step := Step{Target: Batch, Size: 50, Arrival: Arrival{Shape: "trace", File: file}}
	for _, parts := range []int{1, 3} {
		sent, numbers := int64(0), seqs{}
		for i := range parts {
			synctest.Test(t, func(t *testing.T) {
				res := drive(t, SingleStep("t", time.Second, step), Config{Target: &numbers, Segment: Segment{i + 1, parts}})
				if res.Totals.Sent != res.Totals.Intended {
					t.Errorf("sent %d of %d", res.Totals.Sent, res.Totals.Intended)
				}
				sent += res.Totals.Sent
			})
		}
		if sent != all {
			t.Errorf("%d parts: %d messages, not %d", parts, sent, all)
		}
		slices.Sort(numbers.of)
		for i, n := range numbers.of {
			if n != uint64(i) {
				t.Fatalf("%d parts: message %d has the number %d", parts, i, n)
			}
		}
	}
	if got, err := (&Arrival{Shape: "trace", File: file, Slot: Duration(time.Second), Factor: 2}).peak(50); got != 2*all || err != nil {
		t.Errorf("the second with the most has %v messages, %v", got, err)
	}
	step.Count = 100
	if _, err := New(SingleStep("t", time.Second, step), CompileOnlyConfig()); err == nil || !strings.Contains(err.Error(), "arrival.file") {
		t.Errorf("a count beside sizes: %v", err)
	}
}

// seqs is a target that stores the numbers of the messages that it gets.
type seqs struct {
	mu sync.Mutex
	of []uint64
}

func (s *seqs) Send(_ context.Context, r *Request) (Ack, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range r.Size {
		s.of = append(s.of, r.Seq+uint64(i))
	}
	return Ack{Accepted: r.Size}, nil
}
