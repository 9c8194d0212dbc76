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

// view is what the page shows, in words and numbers.
type view struct {
	*load.Result
	When   string
	Means  string
	Missed int // thresholds
	Good   bool
	Tiles  []tile
	Time   []*chart // over time
	Curves []*chart
	Marks  []table // one, or none
	ByStep []table // likewise
	Tables []table
	Final  string
}

type tile struct{ Name, Value, Note, Class string }

type table struct {
	Title, About string
	Head         []cellText
	Rows         [][]cellText
}

// cellText is a cell: a number has the class n. Span is how many columns it takes.
type cellText struct {
	Text, Class, Note string
	Span              int
}

// cells are those of a row; class n is for numbers.
func cells(class string, texts ...string) (row []cellText) {
	for _, t := range texts {
		row = append(row, cellText{Text: t, Class: class})
	}
	return row
}

func plain(texts ...string) []cellText { return cells("", texts...) }

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
		Result: r, Means: verdictMeans[r.Verdict.Code], Missed: missed(r), Final: FinalLine(r),
		Good: r.Verdict.Code == load.Valid && r.Exit == 0,
		When: fmt.Sprintf("%s, %s of sending", r.Started.UTC().Format("2006-01-02 15:04:05Z"), Seconds(r.Sending)),
	}
	if r.Segment.N > 1 {
		v.When += fmt.Sprintf(", segment %d of %d", r.Segment.I, r.Segment.N)
	}
	v.tiles(r)
	v.Time = overTimes(r)
	v.Curves = percentiles(r)
	marks := table{Title: "Marks", About: "The dashed lines in the charts above.", Head: append(cells("n", "no."), plain("at", "kind", "")...)}
	for i, m := range r.Markers {
		marks.Rows = append(marks.Rows, append(cells("n", fmt.Sprint(i+1)), plain(Clock(m.At), m.Kind, m.Text)...))
	}
	if len(marks.Rows) > 0 {
		v.Marks = []table{marks}
	}
	v.steps(r)
	v.tables(r)
	return v
}

func (v *view) tiles(r *load.Result) {
	add := func(name, value, note, class string) { v.Tiles = append(v.Tiles, tile{name, value, note, class}) }
	t := &r.Totals
	add("accepted", Short(r.Rates.Acked)+"/s", term.Count(t.Acked)+" in all", "")
	pick := func(is bool, yes, no string) string {
		if is {
			return yes
		}
		return no
	}
	add("of what was due", percent(float64(t.Sent), float64(t.Intended)), Short(r.Rates.Intended)+"/s was due", pick(t.Sent < t.Intended, "warn", ""))
	q := overall(measured(r), response)
	add("response p99", Nanos(q.P99), fmt.Sprintf("p50 %s, p99.9 %s", Nanos(q.P50), few(q.Count, 1000, q.P999)), "")
	if !r.Ledger.Checked {
		add("ledger", "-", "delivery was not checked", "warn")
		return
	}
	add("delivered", Short(r.Rates.Delivered)+"/s", term.Count(t.Delivered)+" in all, the last "+Seconds(r.DrainTime)+" after the last was sent", "")
	add("lost", term.Count(t.Lost), fmt.Sprintf("of %s accepted", term.Count(r.Ledger.Expected)), pick(t.Lost > 0, "bad", "good"))
	add("duplicates", term.Count(t.Duplicates), "delivered more than once", pick(t.Duplicates > 0, "bad", "good"))
}

func (v *view) steps(r *load.Result) {
	t := table{
		Title: "Steps", About: "Percentiles of the whole run. One with fewer than ten values above it is left out.",
		Head: append(plain("step"), cells("n", "messages", "lowest", "p50", "p90", "p99", "p99.9", "p99.99", "highest")...),
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
			t.Rows = append(t.Rows, append(plain(kindNames[k]), cells("n", term.Count(q.Count), Nanos(q.Min), Nanos(q.P50), Nanos(q.P90), Nanos(q.P99),
				few(q.Count, 1000, q.P999), few(q.Count, 10_000, q.P9999), Nanos(q.Max))...))
		}
	}
	if len(t.Rows) > 0 {
		v.ByStep = []table{t}
	}
}

func (v *view) tables(r *load.Result) {
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
		rows = append(rows, append(cells(class, ThresholdWord(t)), plain(t.Expr, ThresholdValue(t), note)...))
	}
	add("Thresholds", plain("", "rule", "found", ""), rows...)
	if r.Ledger.Checked {
		add("Ledger", nil, ledgerRows(&r.Ledger)...)
	}
	rows = nil
	for _, e := range r.Errors {
		rows = append(rows, plain(term.Count(e.Count), e.Class, e.Code, e.Step, e.Last.UTC().Format("15:04:05Z")))
	}
	add("Errors", plain("messages", "class", "code", "step", "last"), rows...)
	rows = nil
	for _, f := range r.Faults {
		drained := "not drained"
		if f.Drained >= 0 {
			drained = Seconds(f.Drained)
		}
		rows = append(rows, plain(f.Name, Clock(f.Began), Clock(f.Ended), term.Count(f.BacklogBefore), term.Count(f.BacklogPeak), drained, f.Error))
	}
	add("Faults", plain("fault", "began", "ended", "backlog before", "highest", "drained after", "problem"), rows...)
	h := &r.Health
	whose := "this process"
	if h.Embedded {
		whose = "this process, notifyd included"
	}
	add("Generator", nil,
		plain("CPU of "+whose, fmt.Sprintf("%.2f of %.3g cores, %.1f s in all", h.CPU, h.CPUs, h.CPUSeconds)),
		plain("CPU of a message", Nanos(int64(h.NsPerMessage))),
		plain("null sink before the run", Short(h.CalibratedRate)+"/s"),
		plain("asked of that", fmt.Sprintf("%.1f%%", 100*h.GeneratorShare)),
		plain("lag p99 at worst", fmt.Sprintf("%s, in second %d", Nanos(int64(h.LagP99)), h.WorstLagSecond)),
		plain("machine", fmt.Sprintf("%.2f cores busy, %.1f%% stolen", h.MachineCPU, 100*h.Steal)),
		plain("longest GC pause", Nanos(int64(h.GCPause))),
		plain("memory", Bytes(h.RSS)),
		plain("goroutines, sockets", fmt.Sprintf("%d, %d", h.Goroutines, h.Sockets)))
	rows = nil
	for i := range r.Agents {
		a := &r.Agents[i]
		row := plain(a.Name, string(a.State), term.Count(a.Sent), a.Verdict, fmt.Sprintf("%s, give or take %s", Nanos(int64(a.Offset)), Nanos(int64(a.Uncertainty))), a.Host+" "+a.Version, "")
		if a.State == load.AgentLost {
			row[1].Class, row[6].Text = "bad", fmt.Sprintf("at %s: %s; %s of its messages not sent", Clock(a.LostAt), a.LostBecause, term.Count(a.NotSent))
		}
		rows = append(rows, row)
	}
	add("Agents", plain("agent", "", "sent", "its verdict", "clock off by", "host", ""), rows...)
	e := &r.Environment
	rows = [][]cellText{
		plain("notifyctl", e.Version), plain("Go", e.Go+" "+e.OS+"/"+e.Arch), plain("kernel", e.Kernel),
		plain("CPU", fmt.Sprintf("%s, %d CPUs, GOMAXPROCS %d", e.CPU, e.CPUs, e.MaxProcs)), plain("memory", Bytes(e.Memory)),
		plain("load before the run", digits3(e.Load)), plain("host", e.Host), plain("server", e.Server), plain("GOGC", e.Collector),
		plain("seed", fmt.Sprint(r.Scenario.Seed)), plain("scale", r.Scenario.Scale),
	}
	for _, k := range slices.Sorted(maps.Keys(e.Labels)) {
		rows = append(rows, plain(k, e.Labels[k]))
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
		return append(plain(name), cells(class, term.Count(n))...)
	}
	rows := [][]cellText{
		plain("accepted", term.Count(l.Expected)), plain("delivered", term.Count(l.Delivered)),
		bad("lost", l.Lost), bad("duplicates", l.Duplicates), bad("reordered", l.Reordered), bad("early", l.Early),
		bad("late", l.Late), bad("unexpected", l.Unexpected), plain("ended without delivery", term.Count(l.Ended)),
		plain("still on their way", term.Count(l.Pending)), bad("unverified", l.Unverified),
	}
	for _, e := range l.Examples {
		rows = append(rows, plain("see", e))
	}
	return rows
}
