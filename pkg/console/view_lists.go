package console

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

// row is a row of a page's list.
type row struct {
	key   string // does not change after a refresh
	cells []cell
	sheet func() detailSheet // returns its detail page
}

func rowsOf[T any](list []T, one func(*T) row) []row {
	rows := make([]row, 0, len(list))
	for i := range list {
		rows = append(rows, one(&list[i]))
	}
	return rows
}

// shownRows returns the rows of the page's list that match the filter.
func shownRows(m *model) (list []row) {
	d := &m.data
	switch m.tab {
	case tabLetters:
		return rowsOf(d.letters.Items, func(d *api.DeadLetter) row { return letterRow(m, d) }) // the server has filtered them
	case tabJobs:
		list = rowsOf(d.jobs, func(j *api.Job) row { return row{j.ID, jobCells(m, j), func() detailSheet { return jobSheet(m, j) }} })
	case tabCircuits:
		list = rowsOf(d.circuits, func(c *api.Circuit) row {
			cells := circuitCells(m, c)
			if c.Process != "" {
				cells = slices.Insert(cells, 1, cell{text: c.Process})
			}
			return row{circuitKey(c), cells, func() detailSheet { return circuitSheet(m, c) }}
		})
	case tabSchedules:
		list = rowsOf(d.schedules.Items, func(x *api.Scheduled) row { return scheduleRow(m, x) })
	}
	return slices.DeleteFunc(list, func(r row) bool { return !matches(r.cells, m.filter[m.tab]) })
}

func keysOf(m *model) (keys []string) {
	for _, r := range shownRows(m) {
		keys = append(keys, r.key)
	}
	return keys
}

// sheetOf returns the detail page of a row.
func sheetOf(m *model, key string) detailSheet {
	for _, r := range shownRows(m) {
		if r.key == key {
			return r.sheet()
		}
	}
	return detailSheet{key: key, title: key}
}

// drawPageList draws the page's list in at most h lines.
func drawPageList(m *model, f feed, name string, cols []column, empty string, w, h int) []string {
	st, rows := &m.style, shownRows(m)
	note := m.ageNote(f)
	if note == "" {
		note = term.Count(len(rows))
	}
	if t := m.filter[m.tab]; t != "" {
		name += ": " + term.Clean(t)
	}
	out := []string{st.Title("", name, note, w)}
	if line, ok := panelProblem(m, f); ok {
		return append(out, line)
	}
	if len(rows) == 0 {
		return append(out, st.Dim.Render(" "+empty))
	}
	var list [][]cell
	for _, r := range rows {
		list = append(list, r.cells)
	}
	return append(out, drawList(st, cols, list, m.chosenIndex(keysOf(m)), w, h-1)...)
}

func letterKey(l *api.DeadLetter) string { return fmt.Sprintf("%s %d", l.NotificationID, l.Epoch) }

func letterRow(m *model, l *api.DeadLetter) row {
	st := &m.style
	state := cell{text: st.Fail + " " + l.State}
	if l.State != "dead" {
		state = cell{st.More + " " + l.State, &st.Dim}
	}
	return row{letterKey(l), []cell{
		{text: l.NotificationID}, state, {text: ago(m.now, l.LastFailedAt)}, {text: l.Channel}, {text: l.Code}, {text: l.Class},
		{text: l.Caller}, {text: l.Provider}, {text: fmt.Sprint(l.Attempts)}, {text: l.Category}, {text: l.Template},
	}, func() detailSheet { return letterSheet(m, l) }}
}

func lettersPage(m *model, w, h int) (out []string) {
	if top := &m.data.top; h >= 16 && len(top.Groups) > 0 {
		out = groupsPanel(m, w, min(2+len(top.Groups), h/4+1))
	}
	name := "dead letters, newest first"
	if m.data.letters.Cursor != "" {
		name = fmt.Sprintf("the newest %d", len(m.data.letters.Items))
	}
	return append(out, drawPageList(m, feedLetters, name, []column{
		{title: "notification", minWidth: 12}, {title: "state"}, {title: "failed"}, {title: "channel"}, {title: "code", minWidth: 8}, {title: "class", dropOrder: 2},
		{title: "caller", dropOrder: 3}, {title: "provider", dropOrder: 4}, {title: "calls", right: true, dropOrder: 5}, {title: "category", dropOrder: 6}, {title: "template", dropOrder: 7},
	}, "no dead letter matches the filter", w, h-len(out))...)
}

// groupsPanel draws the groups of dead letters, by the way in which they failed. The largest group
// is first.
func groupsPanel(m *model, w, h int) []string {
	st, top := &m.style, &m.data.top
	note := m.ageNote(feedTop)
	if note == "" {
		note = term.Count(top.Total) + " are dead"
		if top.EndsSoon > 0 {
			note += ", " + term.Count(top.EndsSoon) + " will be removed within a day"
		}
	}
	var rows [][]cell
	for i := range top.Groups {
		g := &top.Groups[i]
		if len(rows) == h-2 {
			break
		}
		rows = append(rows, []cell{
			{text: term.Count(g.Count)}, {text: term.Count(g.LastHour) + trend(g.LastHour, g.HourAgo)}, {text: g.Channel}, {text: g.Code}, {text: g.Class},
			{text: g.Provider}, {text: ago(m.now, timeOfMs(g.Last))}, {text: countsText(g.Callers)}, {text: g.Template},
		})
	}
	head, lines := drawTable(st, []column{
		{title: "count", right: true}, {title: "last hour"}, {title: "channel"}, {title: "code", minWidth: 8}, {title: "class", dropOrder: 2},
		{title: "provider", dropOrder: 4}, {title: "last"}, {title: "callers", dropOrder: 3}, {title: "template", dropOrder: 5},
	}, rows, w)
	return append([]string{st.Title("", "how they failed", note, w), head}, lines...)
}

// jobState returns a cell with a sign and the name of a job's state.
func jobState(m *model, s string) cell {
	st := &m.style
	sign, style := "?", &st.Plain
	switch s {
	case "running":
		sign, style = ">", &st.Accent
	case "done":
		sign, style = st.OK, &st.Good
	case "waiting":
		style = &st.Warn
	case "paused":
		sign, style = "=", &st.Warn
	case "stopped":
		sign, style = st.Bang, &st.Bad
	case "failed":
		sign, style = st.Fail, &st.Bad
	case "cancelled":
		sign, style = "-", &st.Dim
	}
	return cell{sign + " " + s, style}
}

func jobCells(m *model, j *api.Job) []cell {
	share := 1.0
	if j.Planned > 0 {
		share = float64(j.Position) / float64(j.Planned)
	}
	return []cell{
		{text: j.ID}, {text: j.Kind}, jobState(m, j.State), {text: fmt.Sprintf("%s %3.0f%%", m.style.Bar(share, 10), 100*share)},
		{text: term.Count(j.Planned)}, {text: term.Count(j.Done)}, {text: term.Count(j.Skips() + j.Exhausted)}, {text: term.Count(j.Failed)},
		{text: term.Count(j.Outcomes.Missed())}, {text: j.By}, {text: ago(m.now, timeOfMs(j.Created))}, {text: j.Why},
	}
}

func jobsPage(m *model, w, h int) []string {
	return drawPageList(m, feedJobs, "jobs, newest first", []column{
		{title: "job", minWidth: 10}, {title: "kind"}, {title: "state"}, {title: "progress"}, {title: "planned", right: true, dropOrder: 3}, {title: "done", right: true},
		{title: "skipped", right: true, dropOrder: 4}, {title: "failed", right: true, dropOrder: 2}, {title: "again", right: true, dropOrder: 5}, {title: "by", dropOrder: 6}, {title: "created", dropOrder: 7}, {title: "why", minWidth: 8},
	}, "no jobs: R on the page dead letters starts one", w, h)
}

func circuitCells(m *model, c *api.Circuit) []cell {
	st := &m.style
	state := cell{st.OK + " " + c.State, &st.Good}
	switch c.State {
	case "open":
		state = cell{st.Fail + " " + c.State, &st.Bad}
	case "half-open":
		state = cell{st.Bang + " " + c.State, &st.Warn}
	}
	held := cell{}
	if c.Pinned {
		held = cell{"held", &st.Warn}
	}
	flight := term.Count(c.InFlight)
	if c.Limit > 0 {
		flight += " of " + term.Count(c.Limit)
	}
	since, probe := "", ""
	if c.Since != nil {
		since = ago(m.now, *c.Since)
	}
	if c.Until != nil && c.State != "closed" {
		probe = timeUntil(m.now, *c.Until)
	}
	if c.Pinned && c.State == "open" {
		probe = "when reset"
	}
	return []cell{{text: c.Name}, state, held, {text: since}, {text: probe}, {text: flight}, {text: term.Count(c.Queued)}}
}

// circuitKey returns a key of a circuit. Each process has its own circuits, so the key contains the
// process.
func circuitKey(c *api.Circuit) string { return strings.TrimSpace(c.Name + " " + c.Process) }

func circuitsPage(m *model, w, h int) []string {
	cols := []column{
		{title: "circuit", minWidth: 12}, {title: "state"}, {title: "held", dropOrder: 1}, {title: "since", dropOrder: 3}, {title: "next probe"}, {title: "in flight", right: true, dropOrder: 2}, {title: "queued", right: true, dropOrder: 4},
	}
	if len(m.data.circuits) > 0 && m.data.circuits[0].Process != "" {
		cols = slices.Insert(cols, 1, column{title: "process"})
	}
	return drawPageList(m, feedCircuits, "circuits", cols, "no provider and no callback was called yet", w, h)
}

func scheduleRow(m *model, s *api.Scheduled) row {
	return row{s.NotificationID, []cell{
		{text: s.NotificationID}, {text: timeUntil(m.now, s.ScheduledAt)}, {text: s.ScheduledAt.UTC().Format("01-02 15:04:05Z")},
		{text: s.Channel}, {text: term.Count(s.Receivers)}, {text: s.Category}, {text: s.Caller}, {text: s.Campaign},
	}, func() detailSheet { return scheduleSheet(m, s) }}
}

func schedulesPage(m *model, w, h int) []string {
	out := forecastPanel(m, w)
	if h < 10 {
		out = out[:1]
	}
	name := "scheduled notifications, newest request first"
	if m.data.schedules.Cursor != "" {
		name = fmt.Sprintf("the newest %d scheduled notifications", len(m.data.schedules.Items))
	}
	return append(out, drawPageList(m, feedSchedules, name, []column{
		{title: "notification", minWidth: 12}, {title: "due"}, {title: "at", dropOrder: 2}, {title: "channel"}, {title: "receivers", right: true}, {title: "category", dropOrder: 3}, {title: "caller", dropOrder: 1}, {title: "campaign", dropOrder: 4},
	}, "nothing is scheduled", w, h-len(out))...)
}

// forecastPanel draws the work of the next hour, by minute and channel.
func forecastPanel(m *model, w int) []string {
	st, f := &m.style, &m.data.forecast
	note := m.ageNote(feedForecast)
	if note == "" {
		note = term.Count(f.Total) + " in all"
		if !f.Complete {
			note = "at least " + note
		}
	}
	out := []string{st.Title("", "due in the next hour, by minute", note, w)}
	if line, ok := panelProblem(m, feedForecast); ok {
		return append(out, line)
	}
	room := min(60, max(10, w-36))
	per := (60 + room - 1) / room // minutes per column
	columns := (60 + per - 1) / per
	whats := []string{"push", "sms", "email", "trigger"}
	for _, x := range f.Minutes {
		if !slices.Contains(whats, x.What) {
			whats = append(whats, x.What)
		}
	}
	from := f.From.Truncate(time.Minute)
	for _, what := range whats {
		values, total := make([]float64, columns), int64(0)
		best := api.ForecastMinute{}
		for _, x := range f.Minutes {
			if x.What != what {
				continue
			}
			total += x.Count
			if x.Count > best.Count {
				best = x
			}
			if i := int(x.Minute.Sub(from)/time.Minute) / per; i >= 0 {
				values[min(i, columns-1)] += float64(x.Count)
			}
		}
		bars, _ := st.Bars(values, columns, 1)
		text := ""
		if total > 0 {
			text = fmt.Sprintf("%9s  most %s at %s", term.Count(total), term.Count(best.Count), best.Minute.UTC().Format("15:04Z"))
		}
		out = append(out, " "+st.Fit(term.Clean(what), 8)+st.Accent.Render(bars[0])+text)
	}
	return append(out, st.Dim.Render(" "+st.Fit("", 8)+st.Fit("now", columns-4)+"+1h"))
}

func timeText(m *model, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	text := t.UTC().Format("2006-01-02T15:04:05Z")
	if t.After(m.now) {
		return text + ", " + timeUntil(m.now, t)
	}
	return text + ", " + ago(m.now, t)
}

func optionalTimeText(m *model, t *time.Time) string {
	if t == nil {
		return ""
	}
	return timeText(m, *t)
}

func letterSheet(m *model, l *api.DeadLetter) detailSheet {
	s := detailSheet{key: letterKey(l), title: "dead letter " + l.NotificationID, lines: [][2]string{
		{"state", l.State}, {"code", l.Code}, {"class", l.Class}, {"provider", l.Provider}, {"calls", fmt.Sprint(l.Attempts)},
		{"last failed", timeText(m, l.LastFailedAt)}, {"first failed", timeText(m, l.FirstFailedAt)}, {"channel", l.Channel}, {"category", l.Category},
		{"caller", l.Caller}, {"campaign", l.Campaign}, {"user", l.UserID}, {"template", l.Template}, {"epoch", fmt.Sprint(l.Epoch)},
		{"expires", optionalTimeText(m, l.ExpiresAt)}, {"kept until", optionalTimeText(m, l.KeptUntil)}, {"moved by", l.Job}, {"record", l.Origin},
	}, next: []string{m.opt.Command("why", l.NotificationID), m.opt.Command("explain", l.Code)}}
	if strings.HasPrefix(l.NotificationID, "trg_") {
		s.next[0] = m.opt.Command("trigger", "show", l.NotificationID)
	}
	for _, k := range slices.Sorted(maps.Keys(l.Extra)) {
		s.lines = append(s.lines, [2]string{k, fmt.Sprint(l.Extra[k])})
	}
	return s
}

func jobSheet(m *model, j *api.Job) detailSheet {
	s := detailSheet{key: j.ID, title: j.Kind + " " + j.ID, lines: [][2]string{
		{"state", jobState(m, j.State).text}, {"why", j.Why}, {"position", term.Count(j.Position) + " of " + term.Count(j.Planned)}, {"done", term.Count(j.Done)},
		{"skipped", countsText(j.Skipped)}, {"exhausted", term.Count(j.Exhausted)}, {"failed", term.Count(j.Failed)},
	}, next: []string{m.opt.Command("job", "watch", j.ID), m.opt.Command("job", "report", j.ID)}}
	if j.Kind == "replay" {
		s.lines = append(s.lines, [2]string{"outcomes", j.Outcomes.Text(term.Count[int])},
			[2]string{"rate", fmt.Sprintf("set %g/s, sent %.1f/s", j.Spec.Rate, j.Reached)}, [2]string{"guard", guardOf(&j.Spec)})
	}
	return detailSheet{s.key, s.title, append(s.lines, [][2]string{
		{"selects", strings.Join(filterFlags(&j.Spec.Filter), " ")}, {"by", j.By}, {"approved by", j.Approved}, {"reason", j.Reason}, {"name", j.Name}, {"plan", j.Digest},
		{"created", timeText(m, timeOfMs(j.Created))}, {"updated", timeText(m, timeOfMs(j.Updated))},
	}...), s.next}
}

func circuitSheet(m *model, c *api.Circuit) detailSheet {
	held := "no: the results of its calls decide"
	if c.Pinned {
		held = "yes, until it is reset"
	}
	row := circuitCells(m, c)
	s := detailSheet{key: circuitKey(c), title: "circuit " + c.Name, lines: [][2]string{
		{"state", row[1].text}, {"held", held}, {"since", optionalTimeText(m, c.Since)}, {"why", c.Why()}, {"next try", row[4].text}, {"in flight", row[5].text}, {"queued", term.Count(c.Queued)},
	}, next: []string{m.opt.Command("circuit", "ls")}}
	if c.Process != "" {
		s.lines = append(s.lines, [2]string{"process", c.Process})
	}
	if i := slices.IndexFunc(m.data.findings, func(f api.Finding) bool {
		return f.Process == c.Process && f.Check == "circuit "+strings.TrimPrefix(c.Name, "provider:")
	}); i >= 0 {
		f := &m.data.findings[i]
		s.lines = append(s.lines, [2]string{"doctor", f.Detail}, [2]string{"repair", f.Repair})
	}
	return s
}

func scheduleSheet(m *model, x *api.Scheduled) detailSheet {
	return detailSheet{key: x.NotificationID, title: x.NotificationID, lines: [][2]string{
		{"due", timeText(m, x.ScheduledAt)}, {"status", x.Status}, {"channel", x.Channel}, {"category", x.Category}, {"receivers", term.Count(x.Receivers)},
		{"caller", x.Caller}, {"campaign", x.Campaign}, {"accepted", timeText(m, x.AcceptedAt)}, {"expires", optionalTimeText(m, x.ExpiresAt)}, {"moved", fmt.Sprintf("%d times", x.Generation)},
	}, next: []string{m.opt.Command("show", x.NotificationID), m.opt.Command("reschedule", x.NotificationID, "--at", "+1h"), m.opt.Command("cancel", x.NotificationID)}}
}
