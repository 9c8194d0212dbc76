package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

// overview draws what the server does now, and its problems.
func overview(m *model, w, h int) []string {
	st := &m.style
	if h < 14 || w < 60 { // too small for all panels: draw the most important one
		return nowPanel(m, w)
	}
	charts := 1
	if h >= 30 {
		charts = 4
	}
	out := ratesPanel(m, w, charts)
	left := w*11/20 - 1
	right := w - left - 2
	now := nowPanel(m, left)
	lanes := lanesPanel(m, right, max(len(now), min(h/3, 18)))
	out = append(out, st.Beside(now, lanes, left, right)...)
	return append(out, doctorPanel(m, w, h-len(out))...)
}

func ratesPanel(m *model, w, rows int) []string {
	st, r := &m.style, &m.data.rates
	note := m.ageNote(feedRates)
	if note == "" {
		note = fmt.Sprintf("over %.0f s", r.OverSeconds)
	}
	out := []string{st.Title("", "per second", note, w)}
	if line, ok := panelProblem(m, feedRates); ok {
		return append(out, line)
	}
	cols := []column{{title: "", minWidth: 7}, {title: "accepted", right: true}, {title: "reached", right: true}, {title: "failed", right: true}, {title: "other", right: true, dropOrder: 1}}
	var list [][]cell
	sum := api.Rate{What: "all"}
	add := func(r *api.Rate) {
		row := []cell{{text: r.What}, {text: rateText(r.Accepted)}, {text: rateText(r.Reached)}, {text: rateText(r.Failed)}, {text: rateText(r.Other)}}
		if r.Failed > 0 {
			row[3].text = st.Bang + " " + row[3].text
			row[3].style = &st.Bad
		}
		list = append(list, row)
	}
	for i := range r.Rates {
		one := &r.Rates[i]
		sum.Accepted, sum.Reached, sum.Failed, sum.Other = sum.Accepted+one.Accepted, sum.Reached+one.Reached, sum.Failed+one.Failed, sum.Other+one.Other
		add(one)
	}
	add(&sum)
	left := max(44, w*2/5)
	head, lines := drawTable(st, cols, list, min(left, 60))
	block := append([]string{head}, lines...)
	if right := w - left - 2; right >= 20 {
		return append(out, st.Beside(block, chartsOf(m, right, rows), left, right)...)
	}
	return append(out, block...)
}

// chartsOf draws two charts of the last minutes: the rate at which notifications were accepted, and
// the rate at which they ended.
func chartsOf(m *model, w, rows int) []string {
	st, series := &m.style, m.data.rates.Series
	var in, done []float64
	for _, p := range series {
		in, done = append(in, p.Accepted), append(done, p.Ended)
	}
	room := w - 6
	out := []string{st.Dim.Render(fmt.Sprintf("%-5s %s", "", st.Fit("the last "+term.FormatDuration(time.Duration(min(len(series), room))*5*time.Second), room)))}
	for _, c := range []struct {
		name   string
		values []float64
	}{{"in", in}, {"out", done}} {
		lines, peak := st.Bars(c.values, room, rows)
		for i, l := range lines {
			name := ""
			if i == len(lines)-1 {
				name = c.name
			}
			out = append(out, fmt.Sprintf("%5s ", name)+st.Accent.Render(l))
		}
		out = append(out, st.Dim.Render(fmt.Sprintf("%5s peak %s/s", "", rateText(peak))))
	}
	return out
}

// nowPanel draws one line for each thing that can be delayed, broken or full.
func nowPanel(m *model, w int) []string {
	st, d := &m.style, &m.data
	out := []string{st.Title("", "now", "", w)}
	line := func(f feed, name, text string, bad bool) {
		if t, ok := panelProblem(m, f); ok {
			text, bad = strings.TrimSpace(ansi.Strip(t)), m.states[f].refused != nil
		}
		sign, style := " ", &st.Plain
		if bad {
			sign, style = st.Bang, &st.Warn
		}
		out = append(out, " "+style.Render(sign)+" "+st.Fit(name, 13)+" "+style.Render(term.Clean(text)))
	}
	dead := term.Count(d.top.Total)
	if d.top.Total > 0 {
		var hour, before int
		for i := range d.top.Groups {
			hour, before = hour+d.top.Groups[i].LastHour, before+d.top.Groups[i].HourAgo
		}
		dead += fmt.Sprintf(", %s this hour%s", term.Count(hour), trend(hour, before))
	}
	line(feedTop, "dead letters", dead, d.top.Total > 0)
	open := notClosedCircuits(m)
	circuits := fmt.Sprintf("all %d closed", len(d.circuits))
	if len(d.circuits) == 0 {
		circuits = "no calls yet"
	}
	if len(open) > 0 {
		circuits = fmt.Sprintf("%d not closed: %s", len(open), strings.Join(open, ", "))
	}
	line(feedCircuits, "circuits", circuits, len(open) > 0)
	var lag, flight int64
	for _, l := range d.lanes {
		lag, flight = lag+l.Lag, flight+int64(l.InFlight)
	}
	behind := "nothing"
	if lag > 0 {
		behind = term.Count(lag) + " records"
	}
	line(feedLag, "behind", fmt.Sprintf("%s, %s in flight", behind, term.Count(flight)), false)
	soon := int64(0)
	for _, x := range d.forecast.Minutes {
		if x.Minute.Before(m.now.Add(time.Minute)) {
			soon += x.Count
		}
	}
	line(feedForecast, "waiting", fmt.Sprintf("%s due in an hour, %s in a minute", term.Count(d.forecast.Total), term.Count(soon)), false)
	for _, l := range d.rates.Late {
		text := "none was due"
		if l.N > 0 {
			text = fmt.Sprintf("late p50 <%s, p99 <%s", term.FormatDuration(seconds(l.P50)), term.FormatDuration(seconds(l.P99)))
		}
		line(feedRates, l.What+"s", text, l.P99 > 1)
	}
	if ps := d.rates.Processes; len(ps) > 0 {
		var absent []string
		for i := range ps {
			if ps[i].Missing() {
				absent = append(absent, ps[i].Absence())
			}
		}
		text := fmt.Sprintf("all %d answer", len(ps))
		if absent != nil {
			text = strings.Join(absent, "; ")
		}
		line(feedRates, "processes", text, absent != nil)
	}
	running := 0
	var stuck []string
	for i := range d.jobs {
		switch j := &d.jobs[i]; j.State {
		case "running":
			running++
		case "waiting", "stopped", "failed", "paused":
			stuck = append(stuck, j.State)
		}
	}
	jobs := fmt.Sprintf("%d running", running)
	if len(stuck) > 0 {
		jobs += fmt.Sprintf(", %d stuck: %s", len(stuck), strings.Join(slices.Compact(slices.Sorted(slices.Values(stuck))), ", "))
	}
	line(feedJobs, "jobs", jobs, len(stuck) > 0)
	for _, f := range d.findings {
		if f.Used != nil {
			line(feedDoctor, f.Check, fmt.Sprintf("%s %.0f%% full", st.Bar(*f.Used, 10), 100**f.Used), f.Level != "ok")
		}
	}
	return out
}

func trend(now, before int) string {
	switch {
	case now > before:
		return ", rising"
	case now < before:
		return ", falling"
	}
	return ""
}

// notClosedCircuits returns the names of the circuits that are not closed.
func notClosedCircuits(m *model) (names []string) {
	for i := range m.data.circuits {
		if c := &m.data.circuits[i]; c.State != "closed" {
			names = append(names, c.Name)
		}
	}
	return slices.Compact(names) // they are sorted by name, so this leaves one name for all processes
}

// lanesPanel draws the lag of each lane, the largest first.
func lanesPanel(m *model, w, h int) []string {
	st := &m.style
	out := []string{st.Title("", "lanes, in records", m.ageNote(feedLag), w)}
	if line, ok := panelProblem(m, feedLag); ok {
		return append(out, line)
	}
	list := slices.Clone(m.data.lanes)
	slices.SortStableFunc(list, func(a, b api.GroupLag) int {
		return cmp.Or(cmp.Compare(b.Lag, a.Lag), cmp.Compare(b.InFlight, a.InFlight))
	})
	groups := map[string]int{}
	for _, l := range list {
		groups[l.Group]++
	}
	idle := 0
	for len(list) > max(1, h-2) {
		list = list[:len(list)-1]
		idle++
	}
	if idle > 0 && len(list) > 1 {
		list = list[:len(list)-1]
		idle++
	}
	rows := make([][]cell, 0, len(list))
	for _, l := range list {
		name := strings.TrimSuffix(l.Group, "-workers")
		if groups[l.Group] > 1 {
			name += " " + l.Topic
		}
		row := []cell{{text: name}, {text: term.Count(l.Lag)}, {text: term.Count(l.InFlight)}, {text: term.Count(l.Paused)}}
		if l.Paused > 0 {
			row[3] = cell{st.Bang + " " + row[3].text, &st.Warn}
		}
		rows = append(rows, row)
	}
	head, lines := drawTable(st, []column{{title: "lane", minWidth: 8}, {title: "behind", right: true}, {title: "flight", right: true}, {title: "paused", right: true, dropOrder: 1}}, rows, w)
	out = append(append(out, head), lines...)
	if idle > 0 {
		out = append(out, st.Dim.Render(fmt.Sprintf(" and %d less behind", idle)))
	}
	return out
}

// doctorPanel draws the doctor's findings that are not ok.
func doctorPanel(m *model, w, h int) []string {
	st := &m.style
	if h < 1 {
		return nil
	}
	var bad []api.Finding
	for _, f := range m.data.findings {
		if f.Level != "ok" {
			bad = append(bad, f)
		}
	}
	slices.SortStableFunc(bad, func(a, b api.Finding) int { return cmp.Compare(a.Level, b.Level) }) // "fail" before "warn"
	note := m.ageNote(feedDoctor)
	if note == "" {
		note = fmt.Sprintf("%d of %d checks are ok", len(m.data.findings)-len(bad), len(m.data.findings))
	}
	out := []string{st.Title("", "doctor", note, w)}
	if line, ok := panelProblem(m, feedDoctor); ok {
		return append(out, line)
	}
	if len(bad) == 0 {
		return append(out, " "+st.Good.Render(st.OK+" no problems found"))
	}
	repairs := h-1 >= 2*len(bad)
	for i, f := range bad {
		if len(out) == h-1 && i < len(bad)-1 {
			return append(out, st.Dim.Render(fmt.Sprintf(" and %d more: %s", len(bad)-i, m.opt.Command("doctor"))))
		}
		sign, style := st.Bang+" warn", &st.Warn
		if f.Level == "fail" {
			sign, style = st.Fail+" fail", &st.Bad
		}
		out = append(out, st.Fit(" "+style.Render(sign)+"  "+st.Bold.Render(term.Clean(strings.TrimSuffix(f.Check+" of "+f.Process, " of ")))+"  "+term.Clean(f.Detail), w))
		if repairs && f.Repair != "" {
			out = append(out, st.Fit("         "+st.More+" "+term.Clean(f.Repair), w))
		}
	}
	return out
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
