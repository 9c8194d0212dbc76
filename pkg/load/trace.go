package load

import (
	"bufio"
	"fmt"
	"math"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// trace is a recorded arrival. A line of its file is a request, or as many requests as
// it says. Lines of one time share the time up to the next line, or the slot where that is
// shorter, so that at never falls. Two lines differ in the size of their requests.
type trace struct {
	begin  []time.Duration // of each line
	before []int64         // requests before each line, and of all; nil: a request a line
	sizes  []int32         // messages of each request of a line; 0: the step's. nil: of all
	slot   time.Duration
	factor float64 // requests for each of the file
	given  int64   // requests of the file, while it is read
}

// Bounds of a trace.
const (
	maxTrace    = 50_000_000 // lines: 8 to 20 bytes each
	maxRequests = 1_000_000_000_000
)

// readTrace reads a file, with factor requests for each of its own. The error names the line and the rule that it breaks.
func readTrace(file string, slot time.Duration, factor float64) (*trace, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	t := &trace{slot: slot, factor: factor}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		if err := t.add(strings.Fields(text)); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
	}
	return t, lines.Err()
}

// add appends a line.
func (t *trace) add(words []string) error {
	v, err := strconv.ParseFloat(words[0], 64)
	n := len(t.begin)
	switch {
	case err != nil || !(v >= 0 && v < 1e9):
		return fmt.Errorf("%q is not a number of seconds", words[0])
	case n > 0 && seconds(v) < t.begin[n-1]:
		return fmt.Errorf("%s s is before the line above", words[0])
	case n == maxTrace:
		return fmt.Errorf("more than %d lines", maxTrace)
	case len(words) > 3:
		return fmt.Errorf("%q is more than seconds, requests and the messages of each", strings.Join(words, " "))
	}
	count, size := int64(1), int64(0)
	if len(words) > 1 {
		if count, err = strconv.ParseInt(words[1], 10, 64); err != nil || count < 1 || t.given+count > maxRequests {
			return fmt.Errorf("%q is not a number of requests, from 1 to %d in all", words[1], maxRequests)
		}
	}
	if len(words) > 2 {
		if size, err = strconv.ParseInt(words[2], 10, 32); err != nil || size < 1 {
			return fmt.Errorf("%q is not a number of messages, from 1 to %d", words[2], math.MaxInt32)
		}
	}
	// What is cut off one line is added to the next, so that the sum is exact.
	t.given += count
	if count = int64(float64(t.given)*t.factor) - t.requests(); count < 1 {
		return nil
	}
	if count > 1 && t.before == nil { // up to here there was a request a line
		for i := range n + 1 {
			t.before = append(t.before, int64(i))
		}
	}
	if size > 0 && t.sizes == nil {
		t.sizes = make([]int32, n)
	}
	t.begin = append(t.begin, seconds(v))
	if t.before != nil {
		t.before = append(t.before, t.before[n]+count)
	}
	if t.sizes != nil {
		t.sizes = append(t.sizes, int32(size))
	}
	return nil
}

// first returns how many requests are before a line.
func (t *trace) first(line int) int64 {
	if t.before == nil {
		return int64(line)
	}
	return t.before[line]
}

// requests returns how many there are.
func (t *trace) requests() int64 { return t.first(len(t.begin)) }

// line returns the line of a request that is there.
func (t *trace) line(i int64) int {
	if t.before == nil {
		return int(i)
	}
	n, exact := slices.BinarySearch(t.before, i)
	if exact {
		return n
	}
	return n - 1
}

// moment is the lines of one time: the requests before them, how many they have, and how
// long these take.
func (t *trace) moment(line int) (first, count int64, width time.Duration) {
	from, to := line, line+1
	for from > 0 && t.begin[from-1] == t.begin[line] {
		from--
	}
	for to < len(t.begin) && t.begin[to] == t.begin[line] {
		to++
	}
	width = t.slot
	if to < len(t.begin) {
		width = min(width, t.begin[to]-t.begin[line])
	}
	return t.first(from), t.first(to) - t.first(from), width
}

func (t *trace) at(i int64) time.Duration {
	if i >= t.requests() {
		return never
	}
	line := t.line(i)
	if t.before == nil {
		return t.begin[line]
	}
	first, count, width := t.moment(line)
	after, _ := mulDiv(width, i-first, count)
	return t.begin[line] + time.Duration(after)
}

func (t *trace) by(d time.Duration) int64 {
	next, _ := slices.BinarySearchFunc(t.begin, d, func(begin, d time.Duration) int {
		if begin <= d {
			return -1
		}
		return 1
	})
	if next == 0 || t.before == nil {
		return int64(next)
	}
	first, count, width := t.moment(next - 1)
	since := d - t.begin[next-1]
	if since >= width {
		return first + count
	}
	// Request r is due at width*r/count, rounded down: by since, if r*width < (since+1)*count.
	n, rest := mulDiv(since+1, count, int64(width))
	if rest > 0 {
		n++
	}
	return first + min(count, n)
}

// busiest returns the messages of the second with the most, with step of them in a request
// that does not say how many. Those of a line count from its time on.
func (t *trace) busiest(step int) (most int64) {
	of := func(line int) int64 {
		size := int64(step)
		if len(t.sizes) > 0 && t.sizes[line] > 0 {
			size = min(size, int64(t.sizes[line]))
		}
		return size * (t.first(line+1) - t.first(line))
	}
	sum, from := int64(0), 0
	for to := range t.begin {
		for sum += of(to); t.begin[to]-t.begin[from] >= time.Second; from++ {
			sum -= of(from)
		}
		most = max(most, sum)
	}
	return most
}

// mulDiv returns a*b/c and the rest of it. The product of a slot and a count may have more
// than 64 bits; b is at most c or a is.
func mulDiv(a time.Duration, b, c int64) (q, rest int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	quotient, remainder := bits.Div64(hi, lo, uint64(c))
	return int64(quotient), int64(remainder)
}

// sized is the messages of a trace's requests: those of one segment.
type sized struct {
	*trace
	step int     // messages of a request that does not say how many
	own  []int64 // messages of the segment's requests before each line, and of all
	seqs []int64 // messages of every segment's requests before each line
}

// newSized returns the messages of a segment; local says how many of the first so many
// requests are the segment's.
func newSized(t *trace, step int, local func(int64) int64) *sized {
	s := &sized{trace: t, step: step, own: make([]int64, len(t.begin)+1), seqs: make([]int64, len(t.begin)+1)}
	for i := range t.begin {
		s.seqs[i+1] = s.seqs[i] + (t.first(i+1)-t.first(i))*int64(s.of(i))
		s.own[i+1] = s.own[i] + (local(t.first(i+1))-local(t.first(i)))*int64(s.of(i))
	}
	return s
}

// of returns the messages of a request of a line: at most the step's size, which a short
// form of the scenario may have cut.
func (s *sized) of(line int) int {
	if n := int(s.sizes[line]); n > 0 {
		return min(n, s.step)
	}
	return s.step
}

// seq returns the number, in its phase, of the first message of request g.
func (s *sized) seq(g int64) int64 {
	line := s.line(g)
	return s.seqs[line] + (g-s.first(line))*int64(s.of(line))
}

// messages returns how many the segment's requests among the first g have.
func (s *sized) messages(g int64, local func(int64) int64) int64 {
	if g >= s.requests() {
		return s.own[len(s.begin)]
	}
	line := s.line(g)
	return s.own[line] + (local(g)-local(s.first(line)))*int64(s.of(line))
}
