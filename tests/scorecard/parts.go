package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// part describes one proof: a program under tests/ that shows that notifyd keeps a promise.
type part struct {
	name    string
	promise string
	command []string
	begin   string // the first characters of the last line of the output, which has the figures of the proof
	needs   []need
	results bool // true: the figures are in the results file of tests/bench, not in the last line of the output
}

// need is the limit of one figure in the last line of a proof's output. The field limit is a
// number, another key in this line, or a difference such as "replayed - canary".
type need struct{ key, name, op, limit string }

// partsOf returns the proofs. Their arguments make all proofs together run for about the given
// number of minutes. The text wanted has the names of the wanted proofs, separated by spaces; ""
// means all proofs.
func partsOf(minutes float64, wanted string, getenv func(string) string) ([]part, error) {
	long := minutes >= 15
	kills := max(3, int(minutes*60*0.35/4.5)) // a kill of torture takes 4.5 s
	stop := time.Duration(min(max(minutes*60*0.15, 15), 600)) * time.Second
	due := max(5000, int(stop.Seconds()*100_000/600))
	program := func(name string, args ...string) []string {
		return append([]string{"go", "run", "./tests/" + name}, args...)
	}
	bench := program("bench", "-only", "P7")
	replay := program("replay", "-kills", strconv.Itoa(max(10, int(minutes/6))))
	if !long {
		bench, replay = append(bench, "-short"), program("replay", "-letters", "10000", "-rate", "1000", "-kills", "3")
	}
	bounded := []need{{"lost", "lost", "==", "0"}, {"duplicates", "sent again", "<=", "bound"}}
	all := []part{
		{
			name: "lateness", promise: "50,000 releases a second: p99 below 50 ms late, none early",
			command: bench, results: true,
		},
		{
			name: "torture", promise: "What was answered reaches one end, over kill -9, and duplicates stay within what is counted",
			command: program("torture", "-kills", strconv.Itoa(kills)), begin: "torture ",
			needs: append(slices.Clone(bounded), need{"terminal", "ended", "==", "accepted"}, need{"reordered", "out of order", "==", "0"},
				need{"early", "early", "==", "0"}, need{"later_lost", "triggers and scheduled pushes lost", "==", "0"},
				need{"called_twice", "called again", "<=", "called_twice_bound"}, need{"drift", "missing in the audit", "==", "0"}),
		},
		{
			name: "take-over", promise: "A stop loses no trigger and fires none early; another life takes over what was due",
			command: program("outage", "-n", strconv.Itoa(due), "-stop", stop.String()), begin: "outage ",
			needs: []need{
				{"lost", "lost", "==", "0"}, {"early", "early", "==", "0"}, {"fired", "fired", "==", "due"},
				{"drain_s", "seconds until caught up", "<=", "bound_s"}, {"ontime_p99_ms", "p99 late meanwhile, ms", "<=", "ontime_bound_ms"},
			},
		},
		{
			name: "replay", promise: "Each dead letter is sent once more, over kills of both sides",
			command: replay, begin: "replay ",
			needs: append(slices.Clone(bounded), need{"replayed", "replayed", "==", "letters"}, need{"delivered", "delivered or in the canary", ">=", "replayed - canary"}),
		},
	}
	if getenv("NOTIFY_TEST_KAFKA") != "" && getenv("NOTIFY_TEST_CASSANDRA") != "" { // the variables are set if the servers of make engines run
		all = append(all, part{
			name: "take-over-servers", promise: "A scheduler that dies is taken over within its leases, on real servers",
			command: []string{"env", "ONLY=leader", "SHORT=1", "scripts/faults.sh"}, begin: "fault=leader ",
			needs: []need{{"first_release_s", "seconds until the first release", "<=", "limit_s"}, {"lost", "lost", "==", "0"}, {"early", "early", "==", "0"}},
		})
	}
	names := strings.Fields(wanted)
	for _, name := range names {
		if !slices.ContainsFunc(all, func(p part) bool { return p.name == name }) {
			return nil, fmt.Errorf("-only: no proof is called %q, or its servers do not run", name)
		}
	}
	if len(names) > 0 {
		all = slices.DeleteFunc(all, func(p part) bool { return !slices.Contains(names, p.name) })
	}
	return all, nil
}

// Part is the result of a proof.
type Part struct {
	Name    string   `json:"name"`
	Promise string   `json:"promise"`
	Command []string `json:"command"`
	Seconds float64  `json:"seconds"`
	Exit    int      `json:"exit"`
	Line    string   `json:"line,omitempty"` // last line of the output
	Figures []Figure `json:"figures"`
	Error   string   `json:"error,omitempty"` // the reason if figures are missing or the proof failed
	Pass    bool     `json:"pass"`
}

// Figure is one figure and its limit.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	Need  string  `json:"need,omitempty"`  // operator and limit, e.g. "<= 5"; empty: the figure has no limit
	Limit float64 `json:"limit,omitempty"` // the number in Need
	Pass  bool    `json:"pass"`
}

// prove runs the proof and reads its figures. It returns an error if the proof could not run or was
// stopped. If figures are missing, Part.Error says why, and prove returns no error.
func (p *part) prove(ctx context.Context, ex execution, progress io.Writer) (Part, error) {
	out := Part{Name: p.name, Promise: p.promise, Command: p.command}
	command, file := p.command, ""
	if p.results {
		dir, err := os.MkdirTemp("", "notifyd-scorecard-")
		if err != nil {
			return out, err
		}
		defer os.RemoveAll(dir) // prove reads the results in it before it returns
		file = filepath.Join(dir, "results.json")
		command = append(slices.Clone(command), "-out", file)
	}
	began := time.Now()
	text, exit, err := ex(ctx, command, progress)
	if err != nil {
		return out, fmt.Errorf("the proof %s: %w", p.name, err)
	}
	out.Seconds, out.Exit = time.Since(began).Round(100*time.Millisecond).Seconds(), exit
	if file != "" {
		var b []byte
		if b, err = os.ReadFile(file); err == nil {
			out.Figures, err = lateness(b)
		}
	} else {
		out.Line = lastLine(string(text), p.begin)
		out.Figures, err = figuresOf(out.Line, p.needs)
	}
	// bench exits 1 also if another figure misses its limit. The README does not promise that
	// figure, so exit code 1 of bench does not make this proof fail.
	out.Pass = err == nil && (exit == 0 || file != "" && exit == 1)
	if err != nil {
		out.Error = err.Error()
	}
	for _, f := range out.Figures {
		out.Pass = out.Pass && f.Pass
	}
	return out, nil
}

// lastLine returns the last of the lines that begin with the prefix and contain "ok=".
func lastLine(text, prefix string) string {
	for _, line := range slices.Backward(strings.Split(text, "\n")) {
		if strings.HasPrefix(line, prefix) && strings.Contains(line, "ok=") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// figuresOf reads the figures that have a limit in needs from the last line of a proof's output. It
// returns an error if the line is empty, if a figure is missing, or if the line does not have
// ok=true.
func figuresOf(line string, needs []need) (out []Figure, err error) {
	if line == "" {
		return nil, errors.New("the output of the proof has no last line with ok=")
	}
	pairs := map[string]string{}
	for _, word := range strings.Fields(line) {
		if key, value, ok := strings.Cut(word, "="); ok {
			pairs[key] = value
		}
	}
	number := func(text string) (float64, error) {
		sum, sign := 0.0, 1.0
		for _, word := range strings.Fields(text) {
			if word == "-" {
				sign = -1
				continue
			}
			v, err := strconv.ParseFloat(word, 64)
			if value, there := pairs[word]; there {
				v, err = strconv.ParseFloat(value, 64)
			}
			if err != nil {
				return 0, fmt.Errorf("the last line of the proof has no figure %q", word)
			}
			sum += sign * v
		}
		return sum, nil
	}
	for _, n := range needs {
		f := Figure{Name: n.name}
		if f.Value, err = number(n.key); err != nil {
			return out, err
		}
		if f.Limit, err = number(n.limit); err != nil {
			return out, err
		}
		f.Need = n.op + " " + strconv.FormatFloat(f.Limit, 'f', -1, 64)
		f.Pass = holds(f.Value, n.op, f.Limit)
		out = append(out, f)
	}
	if pairs["ok"] != "true" {
		return out, fmt.Errorf("the last line of the proof must have ok=true, but has ok=%s", pairs["ok"])
	}
	return out, nil
}

func holds(v float64, op string, limit float64) bool {
	switch op {
	case "==":
		return v == limit
	case "<=":
		return v <= limit
	case ">=":
		return v >= limit
	}
	return false
}

var others = regexp.MustCompile(`p50 (\S+) p99\.9 (\S+) max (\S+) ms, (\d+) early`)

// lateness reads the file with the results of bench. It returns the figures that say how late
// timers are released at 50,000 releases a second.
func lateness(b []byte) ([]Figure, error) {
	var results []struct {
		ID, Work, Unit, Need string
		Value, Reference     float64
		Pass                 *bool
	}
	if err := json.Unmarshal(b, &results); err != nil {
		return nil, fmt.Errorf("cannot decode the results of bench: %w", err)
	}
	for _, r := range results {
		m := others.FindStringSubmatch(r.Work)
		if !strings.HasPrefix(r.Work, "lateness at 50K releases/s") || m == nil || r.Pass == nil {
			continue
		}
		limit, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimPrefix(r.Need, "< "), " ms"), 64)
		if err != nil {
			return nil, fmt.Errorf("the results of bench: the limit of the lateness must be like \"< 50 ms\", but it is %q", r.Need)
		}
		out := []Figure{{Name: "late, p99", Value: r.Value, Unit: r.Unit, Need: r.Need, Limit: limit, Pass: *r.Pass}}
		for i, name := range []string{"late, p50", "late, p99.9", "late, at most"} {
			v, err := strconv.ParseFloat(m[i+1], 64)
			if err != nil {
				return nil, fmt.Errorf("the results of bench: the figure %q must be a number, but it is %q", name, m[i+1])
			}
			out = append(out, Figure{Name: name, Value: v, Unit: r.Unit, Pass: true})
		}
		// The reference: a goroutine that only sleeps. On a busy machine it also wakes late.
		out = append(out, Figure{Name: "a bare sleeper, p99", Value: r.Reference, Unit: r.Unit, Pass: true})
		early, err := strconv.ParseFloat(m[4], 64)
		return append(out, Figure{Name: "early", Value: early, Need: "== 0", Pass: early == 0}), err
	}
	return nil, errors.New("the results of bench have no lateness at 50,000 releases a second")
}
