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

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

//go:embed report.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("report").Parse(pageText))

// reportView holds the data that the template of the page reads.
type reportView struct {
	*load.Result
	When   string
	Means  string
	Missed int  // number of missed thresholds
	Good   bool // true: the verdict is VALID and the exit code is 0
	Tiles  []tile
	Time   []*chart // charts over time
	Curves []*chart // curves of percentiles
	Marks  []table  // at most one table
	ByStep []table  // at most one table
	Tables []table
	Final  string
}

type tile struct{ Name, Value, Note, Class string }

type table struct {
	Title, About string
	Head         []cellText
	Rows         [][]cellText
}

// cellText is one cell of a table. Numbers have the class "n". Span is the number of columns that
// the cell covers.
type cellText struct {
	Text, Class, Note string
	Span              int
}

// rowCells returns the cells of a row, all with the given class. The class is "n" for numbers.
func rowCells(class string, texts ...string) (row []cellText) {
	for _, t := range texts {
		row = append(row, cellText{Text: t, Class: class})
	}
	return row
}

func plainCells(texts ...string) []cellText { return rowCells("", texts...) }

// WriteHTML writes a run as one page. The page has no scripts and loads nothing from a network. The
// package html/template escapes all texts.
func WriteHTML(w io.Writer, r *load.Result) error {
	v := viewOf(r)
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, v); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	// Escape control characters, which names and errors may contain, because the page may be
	// printed on a terminal.
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = notify.EscapeControls(lines[i])
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n"))
	return err
}

func viewOf(r *load.Result) *reportView {
	v := &reportView{
		Result: r, Means: verdictMeans[r.Verdict.Code], Missed: countMissed(r), Final: FinalLine(r),
		Good: r.Verdict.Code == load.Valid && r.Exit == 0,
		When: fmt.Sprintf("%s, %s of sending", r.Started.UTC().Format("2006-01-02 15:04:05Z"), FormatSeconds(r.Sending)),
	}
	if r.Segment.N > 1 {
		v.When += fmt.Sprintf(", segment %d of %d", r.Segment.I, r.Segment.N)
	}
	v.addTiles(r)
	v.Time = timeCharts(r)
	v.Curves = percentileCharts(r)
	marks := table{Title: "Marks", About: "The dashed lines in the charts above.", Head: append(rowCells("n", "no."), plainCells("at", "kind", "")...)}
	for i, m := range r.Markers {
		marks.Rows = append(marks.Rows, append(rowCells("n", fmt.Sprint(i+1)), plainCells(FormatClock(m.At), m.Kind, m.Text)...))
	}
	if len(marks.Rows) > 0 {
		v.Marks = []table{marks}
	}
	v.addStepTable(r)
	v.addTables(r)
	return v
}

func (v *reportView) addTiles(r *load.Result) {
	add := func(name, value, note, class string) { v.Tiles = append(v.Tiles, tile{name, value, note, class}) }
	t := &r.Totals
	add("accepted", FormatCount(r.Rates.Acked)+"/s", term.Count(t.Acked)+" in all", "")
	pick := func(is bool, yes, no string) string {
		if is {
			return yes
		}
		return no
	}
	add("of what was due", percent(float64(t.Sent), float64(t.Intended)), FormatCount(r.Rates.Intended)+"/s was due", pick(t.Sent < t.Intended, "warn", ""))
	q := overallQuantiles(measuredSteps(r), response)
	add("response p99", Nanos(q.P99), fmt.Sprintf("p50 %s, p99.9 %s", Nanos(q.P50), percentileOrDash(q.Count, 1000, q.P999)), "")
	if !r.Ledger.Checked {
		add("ledger", "-", "delivery was not checked", "warn")
		return
	}
	add("delivered", FormatCount(r.Rates.Delivered)+"/s", term.Count(t.Delivered)+" in all, the last "+FormatSeconds(r.DrainTime)+" after the last was sent", "")
	add("lost", term.Count(t.Lost), fmt.Sprintf("of %s accepted", term.Count(r.Ledger.Expected)), pick(t.Lost > 0, "bad", "good"))
	add("duplicates", term.Count(t.Duplicates), "delivered more than once", pick(t.Duplicates > 0, "bad", "good"))
}

func (v *reportView) addStepTable(r *load.Result) {
	t := table{
		Title: "Steps", About: "Percentiles of the whole run. One with fewer than ten values above it is left out.",
		Head: append(plainCells("step"), rowCells("n", "messages", "lowest", "p50", "p90", "p99", "p99.9", "p99.99", "highest")...),
	}
	for i := range r.Steps {
		s := &r.Steps[i].StepSnapshot
		about := fmt.Sprintf("%s to %s, %s %s", s.Arrival, s.Target, s.Channel, s.Category)
		if s.Warmup {
			about += ", warm-up"
		}
		title := []cellText{{Text: stepName(s), Class: "new", Note: about, Span: len(t.Head)}}
		for k := range kinds {
			q := quantiles(s, k)
			if q.Count == 0 {
				continue
			}
			if title != nil {
				t.Rows = append(t.Rows, title)
				title = nil
			}
			t.Rows = append(t.Rows, append(plainCells(kindNames[k]), rowCells("n", term.Count(q.Count), Nanos(q.Min), Nanos(q.P50), Nanos(q.P90), Nanos(q.P99),
				percentileOrDash(q.Count, 1000, q.P999), percentileOrDash(q.Count, 10_000, q.P9999), Nanos(q.Max))...))
		}
	}
	if len(t.Rows) > 0 {
		v.ByStep = []table{t}
	}
}

func (v *reportView) addTables(r *load.Result) {
	add := func(title string, head []cellText, rows ...[]cellText) {
		if len(rows) > 0 {
			v.Tables = append(v.Tables, table{Title: title, Head: head, Rows: rows})
		}
	}
	var rows [][]cellText
	for _, t := range r.Thresholds {
		class := map[string]string{"ok": "good", "MISSED": "bad"}[ThresholdWord(t)]
		note := ""
		if t.Abort {
			note = "ends the run"
		}
		rows = append(rows, append(rowCells(class, ThresholdWord(t)), plainCells(t.Expr, ThresholdValue(t), note)...))
	}
	add("Thresholds", plainCells("", "rule", "found", ""), rows...)
	if r.Ledger.Checked {
		add("Ledger", nil, ledgerRows(&r.Ledger)...)
	}
	rows = nil
	for _, e := range r.Errors {
		rows = append(rows, plainCells(term.Count(e.Count), e.Class, e.Code, e.Step, e.Last.UTC().Format("15:04:05Z")))
	}
	add("Errors", plainCells("messages", "class", "code", "step", "last"), rows...)
	rows = nil
	for _, f := range r.Faults {
		drained := "not drained"
		if f.Drained >= 0 {
			drained = FormatSeconds(f.Drained)
		}
		rows = append(rows, plainCells(f.Name, FormatClock(f.Began), FormatClock(f.Ended), term.Count(f.BacklogBefore), term.Count(f.BacklogPeak), drained, f.Error))
	}
	add("Faults", plainCells("fault", "began", "ended", "backlog before", "highest", "drained after", "problem"), rows...)
	h := &r.Health
	whose := "this process"
	if h.Embedded {
		whose = "this process, notifyd included"
	}
	add("Generator", nil,
		plainCells("CPU of "+whose, fmt.Sprintf("%.2f of %.3g cores, %.1f s in all", h.CPU, h.CPUs, h.CPUSeconds)),
		plainCells("CPU of a message", Nanos(int64(h.NsPerMessage))),
		plainCells("null sink before the run", FormatCount(h.CalibratedRate)+"/s"),
		plainCells("asked of that", fmt.Sprintf("%.1f%%", 100*h.GeneratorShare)),
		plainCells("lag p99 at worst", fmt.Sprintf("%s, in second %d", Nanos(int64(h.LagP99)), h.WorstLagSecond)),
		plainCells("machine", fmt.Sprintf("%.2f cores busy, %.1f%% stolen", h.MachineCPU, 100*h.Steal)),
		plainCells("longest GC pause", Nanos(int64(h.GCPause))),
		plainCells("memory", FormatBytes(h.RSS)),
		plainCells("goroutines, sockets", fmt.Sprintf("%d, %d", h.Goroutines, h.Sockets)))
	rows = nil
	for i := range r.Agents {
		a := &r.Agents[i]
		row := plainCells(a.Name, string(a.State), term.Count(a.Sent), a.Verdict, fmt.Sprintf("%s, give or take %s", Nanos(int64(a.Offset)), Nanos(int64(a.Uncertainty))), a.Host+" "+a.Version, "")
		if a.State == load.AgentLost {
			row[1].Class, row[6].Text = "bad", fmt.Sprintf("at %s: %s; %s of its messages not sent", FormatClock(a.LostAt), a.LostBecause, term.Count(a.NotSent))
		}
		rows = append(rows, row)
	}
	add("Agents", plainCells("agent", "", "sent", "its verdict", "clock off by", "host", ""), rows...)
	e := &r.Environment
	rows = [][]cellText{
		plainCells("notifyctl", e.Version), plainCells("Go", e.Go+" "+e.OS+"/"+e.Arch), plainCells("kernel", e.Kernel),
		plainCells("CPU", fmt.Sprintf("%s, %d CPUs, GOMAXPROCS %d", e.CPU, e.CPUs, e.MaxProcs)), plainCells("memory", FormatBytes(e.Memory)),
		plainCells("load before the run", digits3(e.Load)), plainCells("host", e.Host), plainCells("server", e.Server), plainCells("GOGC", e.Collector),
		plainCells("seed", fmt.Sprint(r.Scenario.Seed)), plainCells("scale", r.Scenario.Scale),
	}
	for _, k := range slices.Sorted(maps.Keys(e.Labels)) {
		rows = append(rows, plainCells(k, e.Labels[k]))
	}
	rows = slices.DeleteFunc(rows, func(row []cellText) bool { return row[1].Text == "" })
	add("Environment", nil, rows...)
}

func ledgerRows(l *load.LedgerResult) [][]cellText {
	bad := func(name string, n int64) []cellText {
		class := ""
		if n > 0 {
			class = "bad"
		}
		return append(plainCells(name), rowCells(class, term.Count(n))...)
	}
	rows := [][]cellText{
		plainCells("accepted", term.Count(l.Expected)), plainCells("delivered", term.Count(l.Delivered)),
		bad("lost", l.Lost), bad("duplicates", l.Duplicates), bad("reordered", l.Reordered), bad("early", l.Early),
		bad("late", l.Late), bad("unexpected", l.Unexpected), plainCells("ended without delivery", term.Count(l.Ended)),
		plainCells("still on their way", term.Count(l.Pending)), bad("unverified", l.Unverified),
	}
	for _, e := range l.Examples {
		rows = append(rows, plainCells("see", e))
	}
	return rows
}
