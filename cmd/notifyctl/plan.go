package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/tool/capacity"
)

// planResult is the result of "notifyctl plan". It contains the capacity sheet for the assumed
// rates. With --from, it also contains the capacity sheet for the measured rates.
type planResult struct {
	Input    map[string]any `json:"input"`
	Source   capacity.Sheet `json:"source"`
	Measured *measuredPlan  `json:"measured,omitempty"`
}

type measuredPlan struct {
	Rates   []capacity.Origin `json:"rates"`
	Missing []string          `json:"missing"` // rates that were not measured; Sheet uses the assumed values
	Sheet   capacity.Sheet    `json:"sheet"`
}

func newPlan(p *program) *cobra.Command {
	var file, from string
	var verify bool
	in := capacity.Default()
	params := in.Params()
	c := &cobra.Command{
		Use: "plan", Short: "Calculate how many workers, nodes and accounts a load needs", Args: cobra.NoArgs,
		Long: `plan computes a capacity sheet: how many of each part a load needs. Without flags, the
load is that of the design document behind notifyd, 5M notifications per second. COUNT
is calculated as in that document. LASTING is what the same load needs if it never ends;
if the two differ, plan says why. HOLDS TO is the load, in the same mix, that COUNT can
carry permanently. ONE LOST is the same after the loss of one part.

Every value is a flag and, with _ instead of -, a key of a YAML file; the flag wins.
--from reads the rates that "make bench" measured, and prints both sheets side by side.
plan needs no server, except with --verify.

With --verify, plan reads the settings and rates of a server's processes (scope
observe) and compares them with the sheet: concurrent requests with rate x latency,
connections, accounts and pools, partitions, timer shards, rates of callers. The load is
the measured one with its mix, or the lasting load of --rate. plan exits 9 if a setting
contradicts the sheet.`,
		Example: `  notifyctl plan
  notifyctl plan --rate 200K --push 60% --email 40% --sms 0 --fanout 0.9
  notifyctl plan -f plan.yaml --from bench/results.json -o json
  notifyctl plan --verify
  notifyctl plan --verify --rate 20K --push 100% --email 0 --sms 0`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := readPlan(c, file, params); err != nil {
				return err
			}
			if verify {
				return runVerify(c.Context(), p, in, from, file != "" || c.Flags().Changed("rate"))
			}
			return runPlan(p, in, from)
		},
	}
	f := c.Flags()
	f.StringVarP(&file, "file", "f", "", "YAML file with values")
	f.StringVar(&from, "from", "", "results of make bench, e.g. bench/results.json")
	f.BoolVar(&verify, "verify", false, "compare the sheet with the settings and rates of a server's processes")
	f.SortFlags = false
	for i := range params {
		f.Var(planValue{&params[i]}, strings.ReplaceAll(params[i].Key, "_", "-"), params[i].Doc)
	}
	return c
}

// planValue is a command-line flag for a parameter.
type planValue struct{ *capacity.Param }

func (planValue) Type() string { return "value" }

// Set sets the parameter. Its error does not name the parameter, because cobra's error names the
// flag.
func (v planValue) Set(text string) error {
	err := v.Param.Set(text)
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return errors.New(e.Msg)
	}
	return err
}

// readPlan reads the parameters from the file. A parameter that a flag sets keeps the flag's value.
func readPlan(c *cobra.Command, file string, params []capacity.Param) error {
	if file == "" {
		return nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return term.Usage("-f: %v", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return term.Usage("%s: %v", file, err)
	}
	if len(doc.Content) == 0 {
		return nil
	}
	if doc.Content[0].Kind != yaml.MappingNode {
		return term.Usage("%s must contain one value per line, such as rate: 5M", file)
	}
	byKey, keys := map[string]*capacity.Param{}, make([]string, 0, len(params))
	for i := range params {
		byKey[params[i].Key] = &params[i]
		keys = append(keys, params[i].Key)
	}
	var problems []error
	seen := map[string]bool{}
	for pairs := doc.Content[0].Content; len(pairs) > 1; pairs = pairs[2:] {
		key, value := pairs[0], pairs[1]
		bad := func(code, format string, args ...any) {
			problems = append(problems, notify.Invalid(code, fmt.Sprintf("%s:%d: %s", file, key.Line, key.Value), fmt.Sprintf(format, args...)))
		}
		prm := byKey[key.Value]
		switch {
		case prm == nil:
			bad("unknown_field", "unknown value%s", nearest(key.Value, keys))
			continue
		case seen[key.Value]:
			bad("duplicate_key", "is given twice")
			continue
		case value.Kind != yaml.ScalarNode:
			bad("wrong_type", "must be a single value, such as 5M")
			continue
		}
		seen[key.Value] = true
		if c.Flags().Changed(strings.ReplaceAll(key.Value, "_", "-")) {
			continue
		}
		if err := prm.Set(value.Value); err != nil {
			e, _ := errors.AsType[*notify.Error](err)
			bad(e.Code, "%s", e.Msg)
		}
	}
	return errors.Join(problems...)
}

func runPlan(p *program, in capacity.Input, from string) error {
	out := planResult{Input: map[string]any{}}
	for _, prm := range in.Params() {
		out.Input[prm.Key] = prm.Value()
	}
	var err error
	if out.Source, err = capacity.Compute(in); err != nil {
		return err
	}
	if from != "" {
		if out.Measured, err = measuredSheet(in, from); err != nil {
			return err
		}
	}
	if p.global.output != "table" || p.global.jq != "" {
		return p.printer().Print(out, nil)
	}
	return printPlan(p, &in, &out)
}

func measuredSheet(in capacity.Input, file string) (*measuredPlan, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, term.Usage("--from: %v; \"make bench\" writes this file", err)
	}
	rs, err := capacity.ParseResults(b)
	if err != nil {
		return nil, err
	}
	in, rates, missing, err := capacity.Measured(in, rs)
	if err != nil {
		return nil, err
	}
	s, err := capacity.Compute(in)
	return &measuredPlan{Rates: rates, Missing: missing, Sheet: s}, err
}

// printPlan prints the sheet as tables with headings, for a person to read.
func printPlan(p *program, in *capacity.Input, out *planResult) error {
	pr := p.printer()
	table := func(heading string, t term.Table) error {
		if len(t) < 2 {
			return nil
		}
		fmt.Fprintf(p.out, "\n%s\n", heading)
		return pr.Print(nil, t)
	}
	fmt.Fprintf(p.out, "%s notifications/s: %s push, %s email, %s SMS; %s scheduled, %s in fan-outs\n", capacity.Number(in.Rate),
		percent(in.Push), percent(in.Email), percent(in.SMS), percent(in.Scheduled), percent(in.Fanout))
	first := out.Source.First
	var errs []error
	if m := out.Measured; m == nil {
		errs = append(errs, table("What the load needs", sheetTable(&out.Source)))
	} else {
		first = "with assumed rates:  " + first + "\nwith measured rates: " + m.Sheet.First
		errs = append(errs, table("What the load needs, with assumed and with measured rates", assumedAndMeasuredTable(&out.Source, &m.Sheet)), table("Measured", ratesTable(m)))
		if len(m.Missing) > 0 {
			fmt.Fprintf(p.out, "not measured, so assumed: %s\n", strings.Join(m.Missing, ", "))
		}
		out.Source = m.Sheet // the tables below use the measured rates
	}
	errs = append(errs, table("Where COUNT is too low for a lasting load", limitTable(&out.Source)),
		table("Rows by chunk: status nodes by share of fan-outs", chunkTable(&out.Source)),
		table("Effect of values that get 10% worse", changeTable(&out.Source)))
	fmt.Fprintf(p.out, "\n%s\n", first)
	return errors.Join(errs...)
}

func percent(share float64) string { return capacity.Number(share*100) + "%" }

// countOrDash returns a count, or "-" for 0. Here 0 means unknown.
func countOrDash(n int64) string {
	if n == 0 {
		return "-"
	}
	return count(n)
}

func rateText(rate float64) string {
	if rate == 0 {
		return ""
	}
	return capacity.Number(rate) + "/s"
}

func sheetTable(s *capacity.Sheet) term.Table {
	t := term.Table{{"PART", "COUNT", "LASTING", "HOLDS TO", "ONE LOST", "HOW"}}
	for i := range s.Lines {
		l := &s.Lines[i]
		lost := rateText(l.OneLost)
		if l.HoldsTo > 0 && l.OneLost == 0 {
			lost = "nothing"
		}
		t = append(t, []string{l.Name, countOrDash(l.Count), countOrDash(l.Sustained), rateText(l.HoldsTo), lost, l.How})
	}
	return t
}

func assumedAndMeasuredTable(a, b *capacity.Sheet) term.Table {
	t := term.Table{{"PART", "ASSUMED", "LASTING", "MEASURED", "LASTING", "HOLDS TO", "HOW"}}
	for i := range b.Lines {
		x, y := &a.Lines[i], &b.Lines[i]
		t = append(t, []string{y.Name, countOrDash(x.Count), countOrDash(x.Sustained), countOrDash(y.Count), countOrDash(y.Sustained), rateText(y.HoldsTo), y.How})
	}
	return t
}

func ratesTable(m *measuredPlan) term.Table {
	return (&columns[capacity.Origin]{head: "VALUE  RATE  FIGURE", row: func(o *capacity.Origin) []string {
		return []string{o.Key, capacity.Number(o.Value) + "/s", o.From}
	}}).table(m.Rates)
}

func limitTable(s *capacity.Sheet) term.Table {
	return (&columns[capacity.Limit]{head: "PART  COUNT  LASTING  WHY", row: func(l *capacity.Limit) []string {
		return []string{s.Line(l.Key).Name, countOrDash(l.Count), countOrDash(l.Sustained), l.Why}
	}}).table(s.Limits)
}

func chunkTable(s *capacity.Sheet) term.Table {
	return (&columns[capacity.Saving]{head: "FAN-OUTS  ROWS/S  NODES  SAVED", row: func(c *capacity.Saving) []string {
		return []string{percent(c.Fanout), capacity.Number(c.Rows), count(c.Nodes), count(c.Saved)}
	}}).table(s.Chunks)
}

func changeTable(s *capacity.Sheet) term.Table {
	t := term.Table{{"VALUE", "FROM", "TO", "PART", "COUNT"}}
	last := ""
	for _, c := range s.Sensitivity {
		row := []string{c.Key, c.From, c.To, s.Line(c.Line).Name, count(c.Was) + " -> " + count(c.Is)}
		if c.Key == last {
			row[0], row[1], row[2] = "", "", ""
		}
		t, last = append(t, row), c.Key
	}
	return t
}
