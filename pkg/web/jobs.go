package web

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strconv"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

func (p *Page) jobs(v *visit) error {
	list, err := v.client.Jobs(v.ctx, 50)
	if err != nil {
		return err
	}
	return v.show("jobs", "Jobs", list)
}

type jobBody struct {
	Job    api.Job
	Report part[[]reportLine]
	More   bool // the report has more lines than are shown
}

// reportLine is the line of one letter in a job's report.
type reportLine struct {
	ID     string `json:"id"`
	Result string `json:"result"`
	Class  string `json:"class"` // set by a reconcile, because its lines have no result
	Why    string `json:"why"`
	Text   string `json:"-"` // the whole line
}

// Changes returns the changes that the job's state allows.
func (b *jobBody) Changes() []string { return api.JobChanges[b.Job.State] }

// Filter returns the job's filter as JSON.
func (b *jobBody) Filter() string {
	raw, err := json.Marshal(b.Job.Spec.Filter)
	if err != nil {
		return ""
	}
	return string(raw)
}

// Percent returns how many percent of the planned entries the job has processed.
func (b *jobBody) Percent() int {
	if b.Job.Planned == 0 {
		return 100
	}
	return min(100, 100*b.Job.Position/b.Job.Planned)
}

const reportShown = 50

func (p *Page) job(v *visit) error {
	var b jobBody
	var err error
	if b.Job, err = v.client.Job(v.ctx, v.r.PathValue("id")); err != nil {
		return err
	}
	enough := errors.New("enough")
	err = v.client.JobReport(v.ctx, b.Job.ID, func(raw json.RawMessage) error {
		if len(b.Report.V) == reportShown {
			b.More = true
			return enough
		}
		l := reportLine{Text: string(raw)}
		_ = json.Unmarshal(raw, &l) // a line without an id is shown as text
		l.Result = cmp.Or(l.Result, l.Class)
		b.Report.V = append(b.Report.V, l)
		return nil
	})
	if err != nil && !errors.Is(err, enough) {
		b.Report.Err = problemOf(err)
	}
	return v.show("job", "Job "+b.Job.ID, &b)
}

func (p *Page) changeJob(v *visit) error {
	change := v.r.PostFormValue("change")
	if !slices.Contains([]string{"approve", "pause", "resume", "cancel"}, change) {
		return notify.Invalid("bad_change", "change", `must be "approve", "pause", "resume" or "cancel"`)
	}
	if change == "cancel" && v.r.PostFormValue("confirm") != "cancel" {
		return notify.Invalid("not_confirmed", "confirm", "a cancel is final: tick the box to end the job for good")
	}
	v.client.Reason = headerText(v.r.PostFormValue("reason"))
	j, err := v.client.ChangeJob(v.ctx, v.r.PathValue("id"), change)
	if err != nil {
		return err
	}
	return v.goTo(Prefix + "jobs/" + url.PathEscape(j.ID))
}

type auditBody struct {
	Rows  []api.AuditRow // newest first
	Older string
}

const auditPage = 50

func (p *Page) audit(v *visit) error {
	var b auditBody
	var after *uint64
	before := uint64(0)
	if s := v.r.URL.Query().Get("before"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return notify.Invalid("bad_number", "before", "must be the number of a row")
		}
		before = n
		from := n - min(n, auditPage+1)
		after = &from
	}
	rows, err := v.client.Audit(v.ctx, after, auditPage)
	if err != nil {
		return err
	}
	for _, r := range slices.Backward(api.FoldAudit(rows)) {
		if before == 0 || r.Seq < before {
			b.Rows = append(b.Rows, r)
		}
	}
	if len(rows) > 0 && rows[0].Seq > 1 { // compare the first row that was read, not the first row that is shown
		b.Older = withQuery(Prefix+"audit", url.Values{"before": {strconv.FormatUint(rows[0].Seq, 10)}})
	}
	return v.show("audit", "Audit log", &b)
}
