package record

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Recorded describes one step of a recorded scenario.
type Recorded struct {
	Step     string  `json:"step"`
	Requests int64   `json:"requests"`
	Messages int64   `json:"messages"`
	Peak     int64   `json:"peak"` // messages in the busiest second
	Skew     Skew    `json:"skew"`
	Bytes    float64 `json:"bytes,omitempty"` // mean length of a text in bytes; 0: not known

	step  load.Step
	trace []byte
}

// traceSlot is the resolution of a trace. A line of the trace file describes all requests of the
// same size in one slot.
const traceSlot = 100 * time.Millisecond

// The largest values that a scenario accepts: messages of a batch, bytes of a text, and users.
const (
	maxBatch = 1000
	maxBytes = 16 << 10
	maxUsers = 100_000_000
)

// requestCounts counts the requests of one step by slot and size.
type requestCounts map[requestSlot]int64

type requestSlot struct {
	slot int64
	size int
}

// Steps returns the steps of the recorded traffic, sorted by name.
func (r *Recorder) Steps() []Recorded {
	single, batch, fan := map[stream]requestCounts{}, map[stream]requestCounts{}, map[stream]requestCounts{}
	put := func(to map[stream]requestCounts, st stream, ms int64, size int, n int64) {
		if to[st] == nil {
			to[st] = requestCounts{}
		}
		to[st][requestSlot{ms / traceSlot.Milliseconds(), size}] += n
	}
	for m, n := range r.moments {
		if m.trigger || n == 1 || m.trace == 0 && n < r.batchFrom {
			put(single, m.stream, m.ms, 1, int64(n))
			continue
		}
		for ; n > 0; n -= maxBatch {
			put(batch, m.stream, m.ms, min(n, maxBatch), 1)
		}
	}
	for f, of := range r.fanouts {
		put(fan, f.stream, of.ms, min(of.receivers, maxUsers), 1)
	}
	var out []Recorded
	for target, of := range map[string]map[stream]requestCounts{load.Single: single, load.Batch: batch, load.Fanout: fan} {
		for st, rs := range of {
			out = append(out, r.recordedStep(target, st, rs))
		}
	}
	slices.SortFunc(out, func(a, b Recorded) int { return strings.Compare(a.Step, b.Step) })
	return out
}

// recordedStep makes one step from the requests of a stream that have the same target. The
// parameter rs counts these requests.
func (r *Recorder) recordedStep(target string, st stream, rs requestCounts) Recorded {
	s := r.streams[st]
	if st.trigger {
		target = load.Trigger
	}
	// Each message carries its address, because the users of a scenario have no profiles with an
	// address.
	step := load.Step{Target: target, Name: target, Arrival: load.Arrival{Shape: "trace"}, Addresses: !st.trigger}
	if !st.trigger {
		step.Channel, step.Category = st.channel.String(), st.category.String()
		step.Name = strings.Join([]string{strings.TrimPrefix(target, "http-"), step.Channel, step.Category}, "-")
	}
	if st.later {
		low, high := s.later.evenBounds()
		step.Scheduled = &load.LaterSpec{After: millis(low), Spread: millis(high - low)}
		if !st.trigger {
			step.Name += "-later"
		}
	}
	out := Recorded{Step: step.Name, Bytes: s.bytes.mean}
	largest, perSecond := 1, map[int64][2]int64{}
	for a, n := range rs {
		largest = max(largest, a.size)
		out.Requests += n
		out.Messages += n * int64(a.size)
		second := perSecond[a.slot*int64(traceSlot)/int64(time.Second)]
		perSecond[a.slot*int64(traceSlot)/int64(time.Second)] = [2]int64{second[0] + n, second[1] + n*int64(a.size)}
	}
	busiest := int64(0) // requests in the busiest second
	for _, n := range perSecond {
		busiest, out.Peak = max(busiest, n[0]), max(out.Peak, n[1])
	}
	if largest > 1 {
		step.Size = largest
	}
	// Provide enough workers for the case that each request takes 10 ms. The default of 64 workers
	// is enough for low rates.
	if n := int(busiest / 100); n > 64 && target != load.Fanout {
		step.Workers = min(n, 2000)
	}
	if s.bytes.n > 0 {
		low, high := s.bytes.evenBounds()
		step.Payload.Bytes, step.Payload.Max = min(int(math.Round(low)), maxBytes), min(int(math.Round(high)), maxBytes)
		if step.Payload.Max <= step.Payload.Bytes {
			step.Payload.Max = 0
		}
	}
	out.Skew = skewOf(s.users)
	step.Users = stepUsers(&out.Skew, largest, target)
	out.step, out.trace = step, traceOf(rs, largest)
	return out
}

func millis(seconds float64) load.Duration {
	return load.Duration(time.Duration(math.Round(seconds*1000)) * time.Millisecond)
}

// stepUsers returns the number of users of a step, and how its messages select them.
func stepUsers(k *Skew, largest int, target string) load.Users {
	u := load.Users{Count: load.Number(min(max(k.Users, largest), maxUsers)), Pick: "uniform"}
	switch {
	case target == load.Fanout || target == load.Trigger || k.once:
		u.Pick = "each"
	case k.Exponent > 0:
		u.Pick, u.Skew = "zipf", k.Exponent
	}
	return u
}

// traceOf returns the lines of a trace. A line holds a time, in seconds since the start, and the
// number of requests. If any request has more than one message, every line also holds the number of
// messages of each request.
func traceOf(rs requestCounts, largest int) []byte {
	var b bytes.Buffer
	b.WriteString("# seconds, requests")
	if largest > 1 {
		b.WriteString(", messages of each")
	}
	b.WriteByte('\n')
	lines := slices.SortedFunc(maps.Keys(rs), func(a, b requestSlot) int {
		return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(a.size, b.size))
	})
	for _, l := range lines {
		b.WriteString(strconv.FormatFloat((time.Duration(l.slot) * traceSlot).Seconds(), 'f', -1, 64))
		fmt.Fprintf(&b, " %d", rs[l])
		if largest > 1 {
			fmt.Fprintf(&b, " %d", l.size)
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// Write writes the scenario to a file, and the trace of each step to another file in the same
// folder. The parameter from names the kind of the source, for the description of the scenario. If
// nothing was recorded, Write writes nothing and returns an error of notify.KindNotFound.
func (r *Recorder) Write(file, from string) ([]Recorded, error) {
	steps := r.Steps()
	if len(steps) == 0 {
		return nil, &notify.Error{Kind: notify.KindNotFound, Code: "nothing_recorded", Field: "since", Msg: "no message was accepted in this period"}
	}
	name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	s := load.Scenario{
		Name: strings.Map(func(c rune) rune {
			if strings.ContainsRune("{},= ", c) {
				return '-'
			}
			return c
		}, name),
		About:    fmt.Sprintf("recorded from %s: %s to %s", from, r.since.UTC().Format(time.RFC3339), r.until.UTC().Format(time.RFC3339)),
		Duration: load.Duration(r.until.Sub(r.since)),
	}
	for i := range steps {
		trace := name + "." + steps[i].Step + ".trace"
		if err := atomicfile.WriteFile(filepath.Join(filepath.Dir(file), trace), steps[i].trace); err != nil {
			return nil, notify.Unavailable("file", 0, err)
		}
		steps[i].step.Arrival.File = trace
		s.Steps = append(s.Steps, steps[i].step)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(s); err != nil {
		return nil, err
	}
	if err := atomicfile.WriteFile(file, b.Bytes()); err != nil {
		return nil, notify.Unavailable("file", 0, err)
	}
	return steps, nil
}
