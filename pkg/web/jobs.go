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
	More   bool // there is more of the report than is shown
}

// reportLine is what a job says of one letter.
type reportLine struct {
	ID     string `json:"id"`
	Result string `json:"result"`
	Class  string `json:"class"` // of a reconcile, which has no result of its own
	Why    string `json:"why"`
	Text   string `json:"-"` // the whole line
}

// Changes are what can be done with the job in its state.
func (b *jobBody) Changes() []string { return api.JobChanges[b.Job.State] }

// Filter of the job as a command's flags.
func (b *jobBody) Filter() string {
	raw, err := json.Marshal(b.Job.Spec.Filter)
	if err != nil {
		return ""
	}
	return string(raw)
}

// Percent of the planned that is behind the job.
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
		_ = json.Unmarshal(raw, &l) // one without an id is shown all the same
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
		return notify.Invalid("bad_change", "change", "approve, pause, resume or cancel")
	}
	if change == "cancel" && v.r.PostFormValue("confirm") != "cancel" {
		return notify.Invalid("not_confirmed", "confirm", "a cancel is final: tick that the job is to end for good")
	}
	v.client.Reason = oneLine(v.r.PostFormValue("reason"))
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
			return notify.Invalid("bad_number", "before", "a row's number")
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
	if len(rows) > 0 && rows[0].Seq > 1 { // of all, not of those that are shown
		b.Older = with(Prefix+"audit", url.Values{"before": {strconv.FormatUint(rows[0].Seq, 10)}})
	}
	return v.show("audit", "Audit log", &b)
}
