package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Jobs plans and runs operators' jobs.
type Jobs interface {
	Plan(ctx context.Context, spec api.JobSpec) (api.Plan, error)
	Apply(ctx context.Context, r api.JobRequest, by deadletter.By) (api.Job, bool, error)
	List(ctx context.Context, max int) ([]api.Job, error)
	Get(ctx context.Context, id string) (api.Job, error)
	Report(ctx context.Context, id string, after uint64, max int) ([]json.RawMessage, uint64, error)
	ChangeState(ctx context.Context, id string, c deadletter.Change, by deadletter.By) (api.Job, error)
	Top(ctx context.Context, f api.LetterFilter, max int) (api.LetterTop, error)
}

func deadLetter(d *engine.DeadLetter) api.DeadLetter {
	return api.DeadLetter{
		NotificationID: deadletter.LetterID(d), Epoch: d.Epoch, Seq: d.Seq, Caller: d.Caller, Campaign: d.Campaign,
		Channel: d.Channel, Category: d.Category, UserID: d.User, Template: d.Template,
		Status: d.Ended().String(), Class: d.Class, Code: d.Code, Provider: d.Provider, Attempts: d.Attempts, State: d.State,
		FirstFailedAt: timeOf(d.FirstFailed), LastFailedAt: timeOf(d.LastFailed), ExpiresAt: optionalTimeOf(d.Expires),
		KeptUntil: optionalTimeOf(d.Until), Extra: d.Extra, TraceID: notify.TraceID(d.Trace),
	}
}

// fullLetter returns a dead letter with the fields that only operators see.
func fullLetter(d *engine.DeadLetter) api.DeadLetter {
	out := deadLetter(d)
	out.Job, out.Origin = d.Job, fmt.Sprintf("%s/%d/%d", d.Topic, d.Partition, d.Offset)
	return out
}

func listDeadLetters(x *exchange) (page api.DeadLetterPage, err error) {
	f := api.ReadLetterFilter(x.query.text, x.query.moment)
	bound := []string{"dead", x.id.Caller, f.Query().Encode()}
	cursor, err := x.cursorPosition(bound)
	if err != nil {
		return page, err
	}
	ds, next, err := someDeadLetters(x, &f, cursor)
	page.Items, page.Cursor = mapSlice(ds, fullLetter), x.srv.cursors.sealCursor(next, bound...)
	return page, err
}

// someDeadLetters returns a page of the dead letters that f selects. The filters f.Attempts and
// f.Where are applied after the page was read. So with these filters a page may be short or empty
// although more pages follow.
func someDeadLetters(x *exchange, f *api.LetterFilter, cursor []byte) (out []engine.DeadLetter, next []byte, err error) {
	listed := engine.DeadLetterFilter{Since: f.Since, Until: f.Until}
	f.Since, f.Until = 0, 0 // List filters by time; NewMatcher would return an error for an empty period, but a list for an empty period is valid: it has no items
	match, err := deadletter.NewMatcher(f)
	if err != nil {
		return nil, nil, err
	}
	ctx, limit, all := x.r.Context(), x.pageSize(), f.Attempts == "" && f.Where == ""
	if !all {
		limit = x.srv.cfg.MaxPageSize
	}
	listed.Want = match.Named
	ds, next, err := x.srv.deps.DeadLetters.List(ctx, listed, cursor, limit)
	if err != nil || all {
		return ds, next, err
	}
	for i := range ds {
		ok, err := match.Matches(ctx, &ds[i])
		if err != nil {
			return nil, nil, err
		}
		if ok {
			out = append(out, ds[i])
		}
	}
	return out, next, nil
}

// getDeadLetter returns the dead letter of a notification in the epoch that the query names. If the
// query names no epoch, it returns the dead letter of the latest epoch that has one.
func getDeadLetter(x *exchange) (api.DeadLetter, error) {
	name, ctx, deps := x.r.PathValue("id"), x.r.Context(), &x.srv.deps
	id, err := deadletter.ParseLetterID(name)
	if err != nil {
		return api.DeadLetter{}, notify.NotFound("dead_letter")
	}
	epoch := x.query.unsigned("epoch")
	if epoch > 1<<16-1 {
		return api.DeadLetter{}, notify.Invalid("out_of_range", "epoch", "must be a number from 0 to 65,535")
	}
	if _, named := x.query["epoch"]; named || strings.HasPrefix(name, "trg_") {
		d, err := deps.DeadLetters.Get(ctx, id, uint16(epoch))
		return fullLetter(&d), err
	}
	var k knownNotification
	if k.found, err = deps.History.Find(ctx, id); err == nil {
		err = k.load(ctx, deps.Status)
	}
	if kind := notify.KindOf(err); err != nil && kind != notify.KindNotFound && kind != notify.KindGone {
		return api.DeadLetter{}, err
	}
	for e := int(k.out.Epoch); ; e-- {
		d, err := deps.DeadLetters.Get(ctx, id, uint16(e))
		if e == 0 || err == nil || notify.KindOf(err) != notify.KindNotFound {
			return fullLetter(&d), err
		}
	}
}

func topDeadLetters(x *exchange, f api.LetterFilter) (api.LetterTop, error) {
	return x.srv.deps.Jobs.Top(x.r.Context(), f, x.query.number("limit", 20))
}

// makePlan makes a plan, and changes nothing.
func makePlan(x *exchange, spec api.JobSpec) (api.Plan, error) {
	if spec.Kind == deadletter.KindReconcile { // reads everything that is stored, which takes long
		x.deadlines(time.Time{}, time.Time{})
	}
	defer func() { x.deadlines(time.Time{}, time.Now().Add(x.srv.cfg.WriteTimeout)) }()
	return x.srv.deps.Jobs.Plan(x.r.Context(), spec)
}

func applyPlan(x *exchange) error {
	var r api.JobRequest
	if err := x.decode(&r); err != nil {
		return err
	}
	by, err := x.actor()
	if err != nil {
		return err
	}
	j, created, err := x.srv.deps.Jobs.Apply(x.r.Context(), r, by)
	if err == nil && created {
		return x.json(http.StatusCreated, j)
	}
	return x.reply(j, err)
}

// items is the JSON form of a list without a cursor.
type items[T any] struct {
	Items []T     `json:"items"`
	Next  *uint64 `json:"next,omitempty"` // in a job's report: where to continue; 0 at the end
}

func listJobs(x *exchange) (out items[api.Job], err error) {
	out.Items, err = x.srv.deps.Jobs.List(x.r.Context(), x.pageSize())
	return out, err
}

func getJob(x *exchange) (api.Job, error) {
	return x.srv.deps.Jobs.Get(x.r.Context(), x.r.PathValue("id"))
}

func jobReport(x *exchange) (items[json.RawMessage], error) {
	lines, next, err := x.srv.deps.Jobs.Report(x.r.Context(), x.r.PathValue("id"), x.query.unsigned("after"), x.pageSize())
	return items[json.RawMessage]{append([]json.RawMessage{}, lines...), &next}, err
}

// jobChange is the body of a change to a job.
type jobChange struct {
	Change deadletter.Change `json:"change"`
}

func changeJob(x *exchange, in jobChange) (api.Job, error) {
	by, err := x.actor()
	if err != nil {
		return api.Job{}, err
	}
	return x.srv.deps.Jobs.ChangeState(x.r.Context(), x.r.PathValue("id"), in.Change, by)
}

// listAudit returns audit rows after a sequence number. If the query has no sequence number, it
// returns the latest rows.
func listAudit(x *exchange) (out items[api.AuditRow], err error) {
	limit, after := x.pageSize(), x.query.unsigned("after")
	if _, named := x.query["after"]; !named {
		last, err := x.srv.deps.Audit.Last(x.r.Context())
		if err != nil {
			return out, err
		}
		after = last - min(last, uint64(limit))
	}
	out.Items, err = x.srv.deps.Audit.Acts(x.r.Context(), after, limit)
	return out, err
}

func verifyAudit(x *exchange) (api.AuditCheck, error) {
	return x.srv.deps.Audit.Verify(x.r.Context(), x.query.text("expect"))
}
