package notify

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Spread holds the number of parts over which requests are spread, and the history of that number.
// A part is a shard of timers, or a partition of the log for users. The number can only be raised.
// A request always uses the number that applied when its base was made. So the rows of the request
// are still found after the number was raised. A Spread is immutable.
type Spread struct{ steps []spreadStep } // the fields from and parts both ascend from step to step

type spreadStep struct {
	from  int64 // time from which the number parts applies, ms since 1970; 0 for the first step
	parts int
}

// SpreadOver returns a Spread with the given number of parts and without a history.
func SpreadOver(parts int) Spread { return Spread{[]spreadStep{{0, parts}}} }

// ParseSpread parses a text that Spread.String returned. It returns an error for any other text.
func ParseSpread(text string) (Spread, error) {
	var s Spread
	for i, field := range strings.Split(text, ",") {
		parts, from, raised := strings.Cut(field, "@")
		n, err := strconv.Atoi(parts)
		at := int64(0)
		if err == nil && raised {
			at, err = strconv.ParseInt(from, 10, 64)
		}
		if err != nil || raised != (i > 0) || n < 1 || i > 0 && (n <= s.Most() || at <= s.steps[i-1].from) {
			return Spread{}, fmt.Errorf("%q is not a list of rising numbers; each number after the first needs @ and the time in ms since 1970 from which it applies, as in 16,256@1790000000000", text)
		}
		s.steps = append(s.steps, spreadStep{at, n})
	}
	return s, nil
}

// String returns the numbers of parts in order. Each number except the first is followed by the time,
// in ms since 1970, from which it applies: "16" or "16,256@1790000000000".
func (s Spread) String() string {
	var b []byte
	for i, step := range s.steps {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(step.parts), 10)
		if i > 0 {
			b = strconv.AppendInt(append(b, '@'), step.from, 10)
		}
	}
	return string(b)
}

// PartsOf returns the number of parts that applies to a request, which is the number at the time
// when the request's base was made. The parameter base is the request's base, or an id that begins
// with the base.
func (s Spread) PartsOf(base []byte) int {
	last := len(s.steps) - 1
	if last <= 0 {
		return s.Most()
	}
	made := int64(0)
	if len(base) >= 6 {
		for _, b := range base[:6] {
			made = made<<8 | int64(b)
		}
	}
	for last > 0 && made < s.steps[last].from {
		last--
	}
	return s.steps[last].parts
}

// Most returns the greatest number of parts, even if it applies only from a later time. It returns 0
// for the zero Spread.
func (s Spread) Most() int {
	if len(s.steps) == 0 {
		return 0
	}
	return s.steps[len(s.steps)-1].parts
}

// PartsAt returns the number of parts that applies to requests made at time t.
func (s Spread) PartsAt(t time.Time) int {
	last := len(s.steps) - 1
	for last > 0 && t.UnixMilli() < s.steps[last].from {
		last--
	}
	if last < 0 {
		return 0
	}
	return s.steps[last].parts
}

// Raise finds out by which raise of the number of parts the given part was added. It returns the
// number before that raise, and the time from which the higher number applies. If the part existed
// from the start, or if it does not exist, both results are zero.
func (s Spread) Raise(part int) (oldParts int, start time.Time) {
	for i := 1; i < len(s.steps); i++ {
		if s.steps[i-1].parts <= part && part < s.steps[i].parts {
			return s.steps[i-1].parts, time.UnixMilli(s.steps[i].from)
		}
	}
	return 0, time.Time{}
}

// Counts returns every number of parts that applied or applies, ascending. The last is the present
// number.
func (s Spread) Counts() []int {
	out := make([]int, len(s.steps))
	for i, step := range s.steps {
		out[i] = step.parts
	}
	return out
}

// HadParts reports whether the given number is, or once was, the number of parts.
func (s Spread) HadParts(parts int) bool {
	return slices.Contains(s.Counts(), parts)
}

// Since returns the time of the last raise: from that time the present number applies. It returns
// the zero time if the number was never raised.
func (s Spread) Since() time.Time {
	if n := len(s.steps); n > 1 {
		return time.UnixMilli(s.steps[n-1].from)
	}
	return time.Time{}
}

// Raised returns a copy of s in which a higher number of parts applies to requests that are made at
// the time start or later. It returns an error if the given number is not higher than the present
// number, or if the time is not later than that of the last raise (Since).
func (s Spread) Raised(parts int, start time.Time) (Spread, error) {
	return ParseSpread(fmt.Sprintf("%s,%d@%d", s, parts, start.UnixMilli()))
}
