package server

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Jobs plans and runs operators' jobs.
type Jobs interface {
	Plan(ctx context.Context, spec api.JobSpec) (api.Plan, error)
	Apply(ctx context.Context, r api.JobRequest, by deadletter.By) (api.Job, bool, error)
	List(ctx context.Context, max int) ([]api.Job, error)
	Get(ctx context.Context, id string) (api.Job, error)
	Report(ctx context.Context, id string, after uint64, max int) ([]json.RawMessage, uint64, error)
	Do(ctx context.Context, id string, c deadletter.Change, by deadletter.By) (api.Job, error)
	Top(ctx context.Context, f api.LetterFilter, max int) (api.LetterTop, error)
}

// makePlan looks, and changes nothing.
func (s *Server) makePlan(x *exchange) error {
	spec, err := bodyOf[api.JobSpec](x)
	if err != nil {
		return err
	}
	if spec.Kind == deadletter.KindReconcile { // it reads all that is kept, as an audit does
		x.deadlines(time.Time{}, time.Time{})
	}
	p, err := s.deps.Jobs.Plan(x.r.Context(), spec)
	if err != nil {
		return err
	}
	x.deadlines(time.Time{}, time.Now().Add(s.cfg.WriteTimeout))
	return x.json(http.StatusOK, p)
}

func (s *Server) applyPlan(x *exchange) error {
	r, err := bodyOf[api.JobRequest](x)
	if err != nil {
		return err
	}
	by, err := x.by()
	if err != nil {
		return err
	}
	j, created, err := s.deps.Jobs.Apply(x.r.Context(), r, by)
	if err != nil {
		return err
	}
	if !created {
		return x.json(http.StatusOK, j)
	}
	return x.json(http.StatusCreated, j)
}

func (s *Server) listJobs(x *exchange) error {
	q := x.query()
	limit := q.pageSize(&s.cfg)
	if err := q.rest(); err != nil {
		return err
	}
	list, err := s.deps.Jobs.List(x.r.Context(), int(limit))
	if err != nil {
		return err
	}
	return x.json(http.StatusOK, map[string]any{"items": list})
}

func (s *Server) getJob(x *exchange) error {
	if err := x.only(); err != nil {
		return err
	}
	return x.reply(s.deps.Jobs.Get(x.r.Context(), x.r.PathValue("id")))
}

func (s *Server) jobReport(x *exchange) error {
	q := x.query()
	limit := q.pageSize(&s.cfg)
	after := q.unsigned("after")
	if err := q.rest(); err != nil {
		return err
	}
	lines, next, err := s.deps.Jobs.Report(x.r.Context(), x.r.PathValue("id"), after, int(limit))
	if err != nil {
		return err
	}
	if lines == nil {
		lines = []json.RawMessage{}
	}
	return x.json(http.StatusOK, map[string]any{"items": lines, "next": next})
}

// jobChange is what an operator does to a job.
type jobChange struct {
	Change deadletter.Change `json:"change"`
}

func (s *Server) changeJob(x *exchange) error {
	in, err := bodyOf[jobChange](x)
	if err != nil {
		return err
	}
	by, err := x.by()
	if err != nil {
		return err
	}
	return x.reply(s.deps.Jobs.Do(x.r.Context(), x.r.PathValue("id"), in.Change, by))
}

func (s *Server) topDeadLetters(x *exchange) error {
	q := x.query()
	limit := q.number("limit", 20, 200)
	if err := q.rest(); err != nil {
		return err
	}
	var f api.LetterFilter
	if err := x.decode(&f); err != nil {
		return err
	}
	return x.reply(s.deps.Jobs.Top(x.r.Context(), f, int(limit)))
}

const maxRemark = 512

// by is who asks: the token's caller, and what it says of why.
func (x *exchange) by() (deadletter.By, error) {
	by := deadletter.By{Caller: x.id.Caller, Request: x.requestID}
	for name, to := range map[string]*string{api.HeaderContext: &by.Context, api.HeaderReason: &by.Reason} {
		v := x.r.Header.Get(name)
		if len(v) > maxRemark {
			return by, notify.Invalid("too_long", name, "at most 512 bytes")
		}
		*to = v
	}
	return by, nil
}

func (s *Server) listAudit(x *exchange) error {
	q := x.query()
	limit := q.pageSize(&s.cfg)
	named := x.r.URL.Query().Has("after")
	after := q.unsigned("after")
	if err := q.rest(); err != nil {
		return err
	}
	if !named { // the latest
		last, err := s.deps.Audit.Last(x.r.Context())
		if err != nil {
			return err
		}
		after = last - min(last, uint64(limit))
	}
	acts, err := s.deps.Audit.Acts(x.r.Context(), after, int(limit))
	if err != nil {
		return err
	}
	return x.json(http.StatusOK, map[string]any{"items": acts})
}

func (s *Server) verifyAudit(x *exchange) error {
	q := x.query()
	expect := q.text("expect")
	if err := q.rest(); err != nil {
		return err
	}
	return x.reply(s.deps.Audit.Verify(x.r.Context(), expect))
}
