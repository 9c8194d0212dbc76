package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/report"
	"github.com/notifyd/notifyd/pkg/load/screen"
	"github.com/notifyd/notifyd/pkg/term"
)

// loadRuns returns the commands that read finished runs.
func loadRuns(p *program) []*cobra.Command {
	return []*cobra.Command{newLoadLs(p), newLoadShow(p), newLoadCompare(p), newLoadMerge(p), newLoadView(p)}
}

func runStore(p *program) report.Store { return report.DefaultStore(p.getenv) }

func newLoadLs(p *program) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use: "ls", Short: "List the kept runs", Args: cobra.NoArgs,
		Long: `ls lists the load runs of this user, the latest first. Runs are kept in
$XDG_DATA_HOME/notifyctl/runs (~/.local/share), each in a folder with result.json,
summary.txt, report.html and run.hlog. To delete a run, remove its folder.`,
		Example: "  notifyctl load ls\n  notifyctl load ls -o json --jq '.items[0].id'",
		RunE: func(*cobra.Command, []string) error {
			list, err := runStore(p).List()
			if err != nil {
				return err
			}
			if limit > 0 {
				list = list[:min(limit, len(list))]
			}
			if list == nil {
				list = []report.Entry{} // JSON must show [], not null
			}
			if len(list) == 0 {
				p.note("none")
			}
			out := p.printer()
			out.Optional = []string{"EXIT", "SENDING", "STARTED"}
			cols := columns[report.Entry]{head: "RUN  STARTED  SENDING  VERDICT  ACCEPTED/S  P99  LOST  DUP  EXIT", row: withProgram(p, runRow)}
			return out.Print(list, cols.table(list))
		},
	}
	c.Flags().IntVar(&limit, "limit", 20, "how many at most; 0: all")
	return c
}

func runRow(p *program, e *report.Entry) []string {
	if e.Damaged != "" {
		return []string{e.ID, "", "", "damaged: " + e.Damaged}
	}
	verdict := e.Verdict
	if e.Partial {
		verdict += ", partial"
	}
	p99 := "-"
	if e.P99 > 0 {
		p99 = report.Nanos(e.P99)
	}
	return []string{
		e.ID, p.timeText(e.Started), report.FormatSeconds(e.Sending), verdict, report.FormatCount(e.AcceptedPS), p99,
		term.Count(e.Lost), term.Count(e.Duplicates), fmt.Sprint(e.Exit),
	}
}

var runForms = []string{"text", "html", "hlog", "json"}

func newLoadShow(p *program) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "show RUN", Short: "Show a kept run", Args: term.Exact("a run: its ID, a part of it, last, last~1, or a file"),
		Long: `show prints the summary of a run, or another form of it: html is a self-contained page,
hlog a log for HdrHistogram's tools, and json the whole result (as with -o json, which
--jq can filter). Name a run by its ID, a unique part of its ID, last, last~1 (the run
before the last), or a file.`,
		Example:           "  notifyctl load show last\n  notifyctl load show last --form html >report.html\n  notifyctl load show last~1 -o json --jq .totals",
		ValidArgsFunction: p.runIDs,
		RunE: func(_ *cobra.Command, args []string) error {
			if !slices.Contains(runForms, form) {
				return term.Usage("--form %q must be text, html, hlog or json", form)
			}
			r, err := runStore(p).Open(args[0])
			if err != nil {
				return err
			}
			switch {
			case p.global.output != "table" || p.global.jq != "":
				return p.printer().Print(r, nil)
			case form == "html":
				return report.WriteHTML(p.out, r)
			case form == "hlog":
				return report.WriteHLog(p.out, r)
			case form == "json":
				raw, err := report.Encode(r)
				if err == nil {
					_, err = p.out.Write(raw)
				}
				return err
			}
			return report.WriteText(p.out, r)
		},
	}
	c.Flags().StringVar(&form, "form", "text", "text, html, hlog or json")
	completeFlag(c, "form", runForms)
	return c
}

func newLoadCompare(p *program) *cobra.Command {
	var (
		rules report.Rules
		fail  bool
	)
	c := &cobra.Command{
		Use: "compare A B", Short: "Compare a run with an earlier one", Args: term.Exact("a run", "a run to compare with it"),
		Long: `compare judges run B against run A. Warm-ups are left out.

  latency   p50, p99 and p99.9 of response, service and end to end, step by step: WORSE
            if more than --percent higher, and by more than --floor, and by more than
            three times the noise. The noise is the standard error of the difference of
            the two runs' seconds; correlated seconds count as fewer. At least ten
            values must lie above a percentile in both runs.
  rates     sent, accepted and delivered: WORSE if more than --percent lower
  backlog   peak of the backlog (accepted but not yet delivered): WORSE if more than
            --percent higher, and by more than what B accepted in a tenth of a second,
            and by more than three times the spread of the seconds
  counts    lost, duplicates, early, reordered, unexpected, unverified and pending (no
            outcome when the run stopped waiting): WORSE if higher at all
  failed    share of what was sent: WORSE if higher by more than 0.1% of it

If the deliveries were not looked up, delivered, backlog and counts are not judged.
Nothing is judged if a run is GENERATOR_BOUND or INCONCLUSIVE, because its figures do
not show the server. With --fail-on-regression, compare exits 99 if something is worse,
and 9 if nothing could be judged.`,
		Example:           "  notifyctl load compare last~1 last\n  notifyctl load compare baseline.json last --fail-on-regression --percent 5",
		ValidArgsFunction: p.runIDs,
		RunE: func(_ *cobra.Command, args []string) error {
			if rules.Percent <= 0 || rules.Percent > 1000 {
				return term.Usage("--percent %g must be above 0 and at most 1000", rules.Percent)
			}
			if rules.Floor <= 0 {
				return term.Usage("--floor %s must be above 0", rules.Floor)
			}
			a, err := runStore(p).Open(args[0])
			if err != nil {
				return err
			}
			b, err := runStore(p).Open(args[1])
			if err != nil {
				return err
			}
			cmp := report.Compare(a, b, rules)
			if p.global.output != "table" || p.global.jq != "" {
				err = p.printer().Print(cmp, nil)
			} else {
				err = report.WriteComparison(p.out, args[0], args[1], &cmp)
			}
			switch {
			case err != nil || !fail:
				return err
			case cmp.Regressions > 0:
				return term.Exitf(term.ExitSLO, "%d figures are worse", cmp.Regressions)
			case !cmp.Judged:
				return term.Exitf(term.ExitFindings, "the runs could not be judged: %s", cmp.Notes[0])
			}
			return nil
		},
	}
	f := c.Flags()
	f.Float64Var(&rules.Percent, "percent", 10, "how much worse a percentile or rate may be, in percent")
	f.DurationVar(&rules.Floor, "floor", 100*time.Microsecond, "ignore a percentile that is worse by less than this time")
	f.BoolVar(&fail, "fail-on-regression", false, "exit 99 if something is worse")
	return c
}

func newLoadMerge(p *program) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "merge RUN RUN...", Short: "Add the segments of one run", Args: term.AtLeast(2, "the runs of the segments"),
		Long: `merge adds the results of load run --segment 1/n ... n/n: totals, histograms, and the
figures of each second. Percentiles come from the added histograms; they are never means
of percentiles. All segments must have the same scenario and seed, and each must occur
once. The result is kept like a run. The exit code is the first exit code of the
segments that is not 0.`,
		Example:           "  notifyctl load merge part1.json part2.json part3.json part4.json",
		ValidArgsFunction: p.runIDs,
		RunE: func(_ *cobra.Command, args []string) error {
			var parts []*load.Result
			for _, a := range args {
				r, err := runStore(p).Open(a)
				if err != nil {
					return err
				}
				parts = append(parts, r)
			}
			m, err := report.Merge(parts)
			if err != nil {
				return err
			}
			if err := keepRun(p, m, out); err != nil {
				return err
			}
			if err := printRun(p, m); err != nil {
				return err
			}
			if m.Exit != 0 {
				first := parts[slices.IndexFunc(parts, func(r *load.Result) bool { return r.Exit == m.Exit })]
				return term.Exitf(m.Exit, "segment %d of %d of the run exited with code %d", first.Segment.I, first.Segment.N, m.Exit)
			}
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", "", "also write the result, with its histograms, to this file as JSON")
	return c
}

// keepRun stores a run. If file is not empty, keepRun also writes the run to that file.
func keepRun(p *program, r *load.Result, file string) error {
	store := runStore(p)
	id, err := store.Save(r)
	if err != nil {
		return fmt.Errorf("the run cannot be stored: %w", err)
	}
	p.note("kept as %s: notifyctl load show %s, or open %s/%s/%s", id, id, store.Dir, id, report.FilePage)
	if file == "" {
		return nil
	}
	return report.WriteFile(file, r)
}

// printRun prints a result in the format of the flags.
func printRun(p *program, r *load.Result) error {
	if p.global.output == "table" && p.global.jq == "" {
		return report.WriteText(p.out, r)
	}
	return p.printer().Print(r, nil)
}

func newLoadView(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "view RUN", Short: "Replay a run on the live screen", Args: term.Exact("a run: its ID, a part of it, last, last~1, or a file"),
		Long: `view replays a finished run second by second. h and l move 5 s back and forward, g and G
go to the start and the end, - and + change the speed, space pauses, ? lists the keys.
Without a terminal it writes a line per second, with -o jsonl as JSON.`,
		Example:           "  notifyctl load view last\n  notifyctl load view last -o jsonl | jq .response.p99",
		ValidArgsFunction: p.runIDs,
		RunE: func(c *cobra.Command, args []string) error {
			r, err := runStore(p).Open(args[0])
			if err != nil {
				return err
			}
			if hasScreen(p) && p.global.output == "table" {
				_, err := screen.Run(c.Context(), p.in, p.out, screenEnv(p), screen.Options{
					Source: screen.NewReplay(r, nil), Name: r.Scenario.Name, ASCII: !utf8Locale(p.getenv), Stay: true,
				})
				return err
			}
			return viewLines(c.Context(), p, r)
		},
	}
}

func viewLines(ctx context.Context, p *program, r *load.Result) error {
	format := screen.Text
	switch p.global.output {
	case "table":
	case "jsonl":
		format = screen.JSONL
	default:
		return term.Usage("-o %s: view writes lines, so -o must be table or jsonl", p.global.output)
	}
	for i := range r.Seconds {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := screen.WriteLine(p.out, &r.Seconds[i], format); err != nil {
			return err
		}
	}
	return nil
}

// hasScreen reports whether standard output can show the live screen and a person can press keys.
func hasScreen(p *program) bool {
	term := p.getenv("TERM")
	return p.inTerminal && p.outTerminal && !p.global.noInput && term != "" && term != "dumb"
}

// screenEnv returns the environment that describes the terminal.
func screenEnv(p *program) []string {
	env := append(os.Environ(), "TERM="+p.getenv("TERM"))
	if !p.coloured() {
		env = append(env, "NO_COLOR=1")
	}
	return env
}
