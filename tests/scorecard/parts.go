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

// part is one proof.
type part struct {
	name    string
	promise string
	command []string
	begin   string // how the closing line begins
	needs   []need
	results bool // the figures are in the results file of tests/bench, not in a closing line
}

// need is the limit of a figure of a closing line. than is a number or another key of the line.
type need struct{ key, name, op, than string }

// partsOf returns the proofs, with arguments for which all together take about minutes. only
// picks proofs by name; empty picks all.
func partsOf(minutes float64, only string, getenv func(string) string) ([]part, error) {
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
				need{"early", "early", "==", "0"}, need{"later_lost", "of those for later lost", "==", "0"},
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
	if getenv("NOTIFY_TEST_KAFKA") != "" && getenv("NOTIFY_TEST_CASSANDRA") != "" { // set if the servers of make engines run
		all = append(all, part{
			name: "take-over-servers", promise: "A scheduler that dies is taken over within its leases, on real servers",
			command: []string{"env", "ONLY=leader", "SHORT=1", "scripts/faults.sh"}, begin: "fault=leader ",
			needs: []need{{"first_release_s", "seconds until the first release", "<=", "limit_s"}, {"lost", "lost", "==", "0"}, {"early", "early", "==", "0"}},
		})
	}
	names := strings.Fields(only)
	for _, name := range names {
		if !slices.ContainsFunc(all, func(p part) bool { return p.name == name }) {
			return nil, fmt.Errorf("-only %s: there is no such proof, or its servers do not run", name)
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
	Line    string   `json:"line,omitempty"` // closing line
	Figures []Figure `json:"figures"`
	Error   string   `json:"error,omitempty"` // why there are no figures
	Pass    bool     `json:"pass"`
}

// Figure is one figure and its limit.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	Need  string  `json:"need,omitempty"`  // empty: for information
	Limit float64 `json:"limit,omitempty"` // of the need
	Pass  bool    `json:"pass"`
}

// prove runs the proof. It returns an error if the proof could not be run or was stopped.
func (p *part) prove(ctx context.Context, ex execution, progress io.Writer) (Part, error) {
	out := Part{Name: p.name, Promise: p.promise, Command: p.command}
	command, file := p.command, ""
	if p.results {
		dir, err := os.MkdirTemp("", "notifyd-scorecard-")
		if err != nil {
			return out, err
		}
		defer os.RemoveAll(dir) // the results in it have been read by then
		file = filepath.Join(dir, "results.json")
		command = append(slices.Clone(command), "-out", file)
	}
	began := time.Now()
	text, exit, err := ex(ctx, command, progress)
	if err != nil {
		return out, fmt.Errorf("%s: %w", p.name, err)
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
	// bench exits 1 also if a figure misses its limit that is not a promise of the README.
	out.Pass = err == nil && (exit == 0 || file != "" && exit == 1)
	if err != nil {
		out.Error = err.Error()
	}
	for _, f := range out.Figures {
		out.Pass = out.Pass && f.Pass
	}
	return out, nil
}

// lastLine returns the last line of text that begins with begin and has key=value pairs.
func lastLine(text, begin string) string {
	for _, line := range slices.Backward(strings.Split(text, "\n")) {
		if strings.HasPrefix(line, begin) && strings.Contains(line, "ok=") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// figuresOf reads the figures of a closing line. It returns an error if a figure is missing,
// or if the line does not have ok=true.
func figuresOf(line string, needs []need) (out []Figure, err error) {
	if line == "" {
		return nil, errors.New("the proof printed no closing line")
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
				return 0, fmt.Errorf("the closing line has no figure %s", word)
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
		if f.Limit, err = number(n.than); err != nil {
			return out, err
		}
		f.Need = n.op + " " + strconv.FormatFloat(f.Limit, 'f', -1, 64)
		f.Pass = holds(f.Value, n.op, f.Limit)
		out = append(out, f)
	}
	if pairs["ok"] != "true" {
		return out, fmt.Errorf("the closing line has ok=%s", pairs["ok"])
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

// lateness reads the figures of the steady releases from the results of bench.
func lateness(b []byte) ([]Figure, error) {
	var results []struct {
		ID, Work, Unit, Need string
		Value, Reference     float64
		Pass                 *bool
	}
	if err := json.Unmarshal(b, &results); err != nil {
		return nil, fmt.Errorf("the results of bench: %w", err)
	}
	for _, r := range results {
		m := others.FindStringSubmatch(r.Work)
		if !strings.HasPrefix(r.Work, "lateness at 50K releases/s") || m == nil || r.Pass == nil {
			continue
		}
		limit, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimPrefix(r.Need, "< "), " ms"), 64)
		if err != nil {
			return nil, fmt.Errorf("the results of bench: a need %q", r.Need)
		}
		out := []Figure{{Name: "late, p99", Value: r.Value, Unit: r.Unit, Need: r.Need, Limit: limit, Pass: *r.Pass}}
		for i, name := range []string{"late, p50", "late, p99.9", "late, at most"} {
			v, err := strconv.ParseFloat(m[i+1], 64)
			if err != nil {
				return nil, fmt.Errorf("the results of bench: %s is %q", name, m[i+1])
			}
			out = append(out, Figure{Name: name, Value: v, Unit: r.Unit, Pass: true})
		}
		// On a busy machine, a goroutine that only sleeps wakes late, too.
		out = append(out, Figure{Name: "a bare sleeper, p99", Value: r.Reference, Unit: r.Unit, Pass: true})
		early, err := strconv.ParseFloat(m[4], 64)
		return append(out, Figure{Name: "early", Value: early, Need: "== 0", Pass: early == 0}), err
	}
	return nil, errors.New("the results of bench have no lateness at 50,000 releases a second")
}
