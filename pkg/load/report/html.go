package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/cli"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

//go:embed report.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("report").Parse(pageText))

// view is what the page shows, in words and numbers.
type view struct {
	Title   string
	About   string
	When    string
	Verdict load.Verdict
	Means   string
	Missed  string // thresholds
	Partial string
	Good    bool
	Tiles   []tile
	Time    []*chart // over time
	Curves  []*chart
	Marks   []mark
	Steps   []stepRow
	Tables  []table
	YAML    string
	Digest  string
	Final   string
}

type tile struct{ Name, Value, Note, Class string }

type mark struct {
	N    int
	At   string
	Kind string
	Text string
}

type stepRow struct {
	Name, About, Kind string
	Warmup            bool
	Cells             []string
}

type table struct {
	Title string
	Head  []string
	Rows  [][]tableCell
}

type tableCell struct{ Text, Class string }

// WriteHTML writes a page that shows a run and needs nothing else: no script, and
// nothing from a network. Its texts go through html/template.
func WriteHTML(w io.Writer, r *load.Result) error {
	v := viewOf(r)
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, v); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	// Control characters of names and errors must not reach who prints the page.
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = notify.EscapeControls(lines[i])
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n"))
	return err
}

func viewOf(r *load.Result) *view {
	v := &view{
		Title: r.Scenario.Name, About: r.Scenario.About, Verdict: r.Verdict, Means: verdictMeans[r.Verdict.Code],
		Good: r.Verdict.Code == load.Valid && r.Exit == 0,
		When: fmt.Sprintf("%s, %s of sending", r.Started.UTC().Format("2006-01-02 15:04:05Z"), Seconds(r.Sending)),
		YAML: r.Scenario.YAML, Digest: r.Scenario.Digest, Final: FinalLine(r),
	}
	if r.Segment.N > 1 {
		v.When += fmt.Sprintf(", segment %d of %d", r.Segment.I, r.Segment.N)
	}
	if r.Partial {
		v.Partial = "Stopped early: these are the figures until then."
		if r.Stopped != "" {
			v.Partial += " " + r.Stopped
		}
	}
	missed := 0
	for _, t := range r.Thresholds {
		if !t.OK {
			missed++
		}
	}
	switch missed {
	case 0:
	case 1:
		v.Missed = "1 threshold missed"
	default:
		v.Missed = fmt.Sprintf("%d thresholds missed", missed)
	}
	v.tiles(r)
	v.Time = overTimes(r)
	v.Curves = percentiles(r)
	for i, m := range r.Markers {
		v.Marks = append(v.Marks, mark{i + 1, Clock(m.At), m.Kind, m.Text})
	}
	v.steps(r)
	v.tables(r)
	return v
}

func (v *view) tiles(r *load.Result) {
	add := func(name, value, note, class string) { v.Tiles = append(v.Tiles, tile{name, value, note, class}) }
	t := &r.Totals
	add("accepted", Short(r.Rates.Acked)+"/s", cli.Count(t.Acked)+" in all", "")
	class := ""
	if t.Sent < t.Intended {
		class = "warn"
	}
	add("of what was due", percent(float64(t.Sent), float64(t.Intended)), Short(r.Rates.Intended)+"/s was due", class)
	q := overall(measured(r), response)
	add("response p99", Nanos(q.P99), fmt.Sprintf("p50 %s, p99.9 %s", Nanos(q.P50), few(q.Count, 1000, q.P999)), "")
	if !r.Ledger.Checked {
		add("ledger", "-", "delivery was not checked", "warn")
		return
	}
	add("delivered", Short(r.Rates.Delivered)+"/s", cli.Count(t.Delivered)+" in all, the last "+Seconds(r.DrainTime)+" after the last was sent", "")
	class = "good"
	if t.Lost > 0 {
		class = "bad"
	}
	add("lost", cli.Count(t.Lost), fmt.Sprintf("of %s accepted", cli.Count(r.Ledger.Expected)), class)
	class = "good"
	if t.Duplicates > 0 {
		class = "bad"
	}
	add("duplicates", cli.Count(t.Duplicates), "delivered more than once", class)
}

func (v *view) steps(r *load.Result) {
	row := func(s *load.StepSnapshot, name, about, kind string, q load.Quantiles) {
		if q.Count == 0 {
			return
		}
		v.Steps = append(v.Steps, stepRow{name, about, kind, s.Warmup, []string{
			cli.Count(q.Count), Nanos(q.Min), Nanos(q.P50), Nanos(q.P90), Nanos(q.P99),
			few(q.Count, 1000, q.P999), few(q.Count, 10_000, q.P9999), Nanos(q.Max),
		}})
	}
	for i := range r.Steps {
		s := &r.Steps[i].StepSnapshot
		name, about := stepName(s), fmt.Sprintf("%s to %s, %s %s", s.Arrival, s.Target, s.Channel, s.Category)
		if s.Warmup {
			about += ", warm-up"
		}
		for k := range kinds {
			before := len(v.Steps)
			row(s, name, about, kindNames[k], quantiles(s, k))
			if len(v.Steps) > before {
				name, about = "", ""
			}
		}
	}
}

func (v *view) tables(r *load.Result) {
	add := func(title string, head []string, rows [][]tableCell) {
		if len(rows) > 0 {
			v.Tables = append(v.Tables, table{title, head, rows})
		}
	}
	plain := func(texts ...string) (row []tableCell) {
		for _, t := range texts {
			row = append(row, tableCell{Text: t})
		}
		return row
	}
	var rows [][]tableCell
	for _, t := range r.Thresholds {
		class := map[string]string{"ok": "good", "MISSED": "bad"}[ThresholdWord(t)]
		row := append([]tableCell{{ThresholdWord(t), class}}, plain(t.Expr, ThresholdValue(t))...)
		note := ""
		if t.Abort {
			note = "ends the run"
		}
		rows = append(rows, append(row, plain(note)...))
	}
	add("Thresholds", []string{"", "rule", "found", ""}, rows)
	v.ledgerTable(r, add, plain)
	rows = nil
	for _, e := range r.Errors {
		rows = append(rows, plain(cli.Count(e.Count), e.Class, e.Code, e.Step, e.Last.UTC().Format("15:04:05Z")))
	}
	add("Errors", []string{"messages", "class", "code", "step", "last"}, rows)
	rows = nil
	for _, f := range r.Faults {
		drained := "not drained"
		if f.Drained >= 0 {
			drained = Seconds(f.Drained)
		}
		rows = append(rows, plain(f.Name, Clock(f.Began), Clock(f.Ended), cli.Count(f.BacklogBefore), cli.Count(f.BacklogPeak), drained, f.Error))
	}
	add("Faults", []string{"fault", "began", "ended", "backlog before", "highest", "drained after", "problem"}, rows)
	h := &r.Health
	whose := "this process"
	if h.Embedded {
		whose = "this process, notifyd included"
	}
	add("Generator", nil, [][]tableCell{
		plain("CPU of "+whose, fmt.Sprintf("%.2f of %.3g cores, %.1f s in all", h.CPU, h.CPUs, h.CPUSeconds)),
		plain("CPU of a message", Nanos(int64(h.NsPerMessage))),
		plain("null sink before the run", Short(h.CalibratedRate)+"/s"),
		plain("asked of that", fmt.Sprintf("%.1f%%", 100*h.GeneratorShare)),
		plain("lag p99 at worst", fmt.Sprintf("%s, in second %d", Nanos(int64(h.LagP99)), h.WorstLagSecond)),
		plain("machine", fmt.Sprintf("%.2f cores busy, %.1f%% stolen", h.MachineCPU, 100*h.Steal)),
		plain("longest GC pause", Nanos(int64(h.GCPause))),
		plain("memory", Bytes(h.RSS)),
		plain("goroutines, sockets", fmt.Sprintf("%d, %d", h.Goroutines, h.Sockets)),
	})
	e := &r.Environment
	rows = [][]tableCell{
		plain("notifyctl", e.Version), plain("Go", e.Go+" "+e.OS+"/"+e.Arch), plain("kernel", e.Kernel),
		plain("CPU", fmt.Sprintf("%s, %d CPUs, GOMAXPROCS %d", e.CPU, e.CPUs, e.MaxProcs)), plain("memory", Bytes(e.Memory)),
		plain("load before the run", digits3(e.Load)), plain("host", e.Host), plain("server", e.Server), plain("GOGC", e.Collector),
		plain("seed", fmt.Sprint(r.Scenario.Seed)), plain("scale", r.Scenario.Scale),
	}
	for _, k := range slices.Sorted(maps.Keys(e.Labels)) {
		rows = append(rows, plain(k, e.Labels[k]))
	}
	rows = slices.DeleteFunc(rows, func(row []tableCell) bool { return row[1].Text == "" })
	add("Environment", nil, rows)
}

func (v *view) ledgerTable(r *load.Result, add func(string, []string, [][]tableCell), plain func(...string) []tableCell) {
	l := &r.Ledger
	if !l.Checked {
		return
	}
	bad := func(name string, n int64) []tableCell {
		class := ""
		if n > 0 {
			class = "bad"
		}
		return append(plain(name), tableCell{cli.Count(n), class})
	}
	rows := [][]tableCell{
		plain("accepted", cli.Count(l.Expected)), plain("delivered", cli.Count(l.Delivered)),
		bad("lost", l.Lost), bad("duplicates", l.Duplicates), bad("reordered", l.Reordered), bad("early", l.Early),
		bad("late", l.Late), bad("unexpected", l.Unexpected), plain("ended without delivery", cli.Count(l.Ended)),
		plain("still on their way", cli.Count(l.Pending)), bad("unverified", l.Unverified),
	}
	for _, e := range l.Examples {
		rows = append(rows, plain("see", e))
	}
	add("Ledger", nil, rows)
}
