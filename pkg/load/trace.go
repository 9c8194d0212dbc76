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

// trace has the times at which recorded requests arrived. Each line of its file is for one request,
// or for several requests if it gives their number. If requests at the same time have different
// sizes, they have several lines with this time. If each line of the file is for one request, each
// request is due at the time of its line. Otherwise all requests of one time are spread evenly from
// this time until the next later time in the file, but over one slot at most. So the times never
// decrease.
type trace struct {
	begin []time.Duration // time of each line, since the start of the step
	// before[i] is the number of requests before line i; the last element is the number of all
	// requests. nil: each line has one request.
	before []int64
	// sizes[i] is the number of messages of each request of line i; 0: the size of the step. If
	// sizes is nil, all requests have the size of the step.
	sizes        []int32
	slot         time.Duration
	factor       float64 // requests to make per request of the file
	fileRequests int64   // requests read from the file so far
}

// The largest trace that is accepted.
const (
	maxTrace    = 50_000_000 // lines; a line takes 8 to 20 bytes of memory
	maxRequests = 1_000_000_000_000
)

// readTrace reads a trace from a file. It multiplies the number of requests by the given factor.
// Its error names the line that is wrong and says why.
func readTrace(file string, slot time.Duration, factor float64) (*trace, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close() // closing a file that was only read cannot lose data
	t := &trace{slot: slot, factor: factor}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		if err := t.addLine(strings.Fields(text)); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
	}
	return t, lines.Err()
}

// addLine parses a line of the file, given as its words, and adds it to the trace.
func (t *trace) addLine(words []string) error {
	v, err := strconv.ParseFloat(words[0], 64)
	n := len(t.begin)
	switch {
	case err != nil || !(v >= 0 && v < 1e9):
		return fmt.Errorf("%q is not a number of seconds", words[0])
	case n > 0 && seconds(v) < t.begin[n-1]:
		return fmt.Errorf("the time %s s is before the time of the line above", words[0])
	case n == maxTrace:
		return fmt.Errorf("the trace has more than %d lines", maxTrace)
	case len(words) > 3:
		return fmt.Errorf("%q has more than three numbers; a line may have only seconds, number of requests, and messages of each request", strings.Join(words, " "))
	}
	count, size := int64(1), int64(0)
	if len(words) > 1 {
		if count, err = strconv.ParseInt(words[1], 10, 64); err != nil || count < 1 {
			return fmt.Errorf("%q must be a number of requests, 1 or more", words[1])
		}
		if t.fileRequests+count > maxRequests {
			return fmt.Errorf("with the %d requests of this line the trace has more than %d requests, which is the maximum", count, maxRequests)
		}
	}
	if len(words) > 2 {
		if size, err = strconv.ParseInt(words[2], 10, 32); err != nil || size < 1 {
			return fmt.Errorf("%q must be a number of messages from 1 to %d", words[2], math.MaxInt32)
		}
	}
	// A factor may give a line a fraction of a request. Add this fraction to the next line, so that
	// the sum of all lines is exact.
	t.fileRequests += count
	if count = int64(float64(t.fileRequests)*t.factor) - t.requests(); count < 1 {
		return nil
	}
	if count > 1 && t.before == nil { // all earlier lines have one request each
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

// requestsBefore returns how many requests the lines before the given line have together.
func (t *trace) requestsBefore(line int) int64 {
	if t.before == nil {
		return int64(line)
	}
	return t.before[line]
}

// requests returns the number of all requests.
func (t *trace) requests() int64 { return t.requestsBefore(len(t.begin)) }

// lineOf returns the line that contains request i. The request must exist.
func (t *trace) lineOf(i int64) int {
	if t.before == nil {
		return int(i)
	}
	n, exact := slices.BinarySearch(t.before, i)
	if exact {
		return n
	}
	return n - 1
}

// linesAt describes all lines that have the same time as the given line. The result first is the
// number of requests before these lines. The result count is the number of requests of these lines.
// The result width is the time over which these requests are spread.
func (t *trace) linesAt(line int) (first, count int64, width time.Duration) {
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
	return t.requestsBefore(from), t.requestsBefore(to) - t.requestsBefore(from), width
}

func (t *trace) dueTime(i int64) time.Duration {
	if i >= t.requests() {
		return never
	}
	line := t.lineOf(i)
	if t.before == nil {
		return t.begin[line]
	}
	first, count, width := t.linesAt(line)
	after, _ := mulDiv(width, i-first, count)
	return t.begin[line] + time.Duration(after)
}

func (t *trace) countDue(d time.Duration) int64 {
	next, _ := slices.BinarySearchFunc(t.begin, d, func(begin, d time.Duration) int {
		if begin <= d {
			return -1
		}
		return 1
	})
	if next == 0 || t.before == nil {
		return int64(next)
	}
	first, count, width := t.linesAt(next - 1)
	since := d - t.begin[next-1]
	if since >= width {
		return first + count
	}
	// Request r of these lines is due width*r/count after the time of the lines, rounded down. So
	// it is due at the time d if r*width < (since+1)*count.
	n, rest := mulDiv(since+1, count, int64(width))
	if rest > 0 {
		n++
	}
	return first + min(count, n)
}

// busiest returns the number of messages in the busiest second. The parameter stepSize is the size of
// requests whose line gives no size. All requests of a line count at the time of the line.
func (t *trace) busiest(stepSize int) (most int64) {
	of := func(line int) int64 {
		size := int64(stepSize)
		if len(t.sizes) > 0 && t.sizes[line] > 0 {
			size = min(size, int64(t.sizes[line]))
		}
		return size * (t.requestsBefore(line+1) - t.requestsBefore(line))
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

// mulDiv returns a*b/c and the remainder. The product may need more than 64 bits. At least one of its
// two factors must be at most c, so that the quotient fits into 64 bits.
func mulDiv(a time.Duration, b, c int64) (q, rest int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	quotient, remainder := bits.Div64(hi, lo, uint64(c))
	return int64(quotient), int64(remainder)
}

// traceSizes holds the sizes of the requests of a trace. Each segment of a divided load sends only
// some of the requests. Therefore traceSizes also counts the messages of the run's own segment.
type traceSizes struct {
	*trace
	step int // size of requests whose line gives no size
	// segmentBefore[i] is the number of messages of this segment before line i. The last element
	// counts all messages of the segment.
	segmentBefore []int64
	allBefore     []int64 // messages of all segments before each line
}

// newSized returns the traceSizes of a trace. The parameter step is the size of requests whose line
// gives no size. The function local returns how many of the first g requests belong to the run's
// own segment.
func newSized(t *trace, step int, local func(int64) int64) *traceSizes {
	s := &traceSizes{trace: t, step: step, segmentBefore: make([]int64, len(t.begin)+1), allBefore: make([]int64, len(t.begin)+1)}
	for i := range t.begin {
		s.allBefore[i+1] = s.allBefore[i] + (t.requestsBefore(i+1)-t.requestsBefore(i))*int64(s.sizeOf(i))
		s.segmentBefore[i+1] = s.segmentBefore[i] + (local(t.requestsBefore(i+1))-local(t.requestsBefore(i)))*int64(s.sizeOf(i))
	}
	return s
}

// sizeOf returns the number of messages of each request of a line. The number is at most the size of
// the step, because the short form of a scenario may have reduced the size of the step.
func (s *traceSizes) sizeOf(line int) int {
	if n := int(s.sizes[line]); n > 0 {
		return min(n, s.step)
	}
	return s.step
}

// seq returns the number of the first message of request g, counted from the start of the phase.
func (s *traceSizes) seq(g int64) int64 {
	line := s.lineOf(g)
	return s.allBefore[line] + (g-s.requestsBefore(line))*int64(s.sizeOf(line))
}

// messages returns how many messages the run's own segment has among the first g requests of the
// phase.
func (s *traceSizes) messages(g int64, local func(int64) int64) int64 {
	if g >= s.requests() {
		return s.segmentBefore[len(s.begin)]
	}
	line := s.lineOf(g)
	return s.segmentBefore[line] + (local(g)-local(s.requestsBefore(line)))*int64(s.sizeOf(line))
}
