package server

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// Reconciler finds and repairs what no longer leads to triggers.
type Reconciler interface {
	Report(ctx context.Context) (trigger.Report, error)
	Apply(ctx context.Context, rep trigger.Report) (trigger.Applied, error)
}

// reconcileReport looks, and changes nothing.
func (s *Server) reconcileReport(x *exchange) error {
	if s.deps.Reconcile == nil {
		return notify.Unavailable("triggers", 0, nil)
	}
	if err := x.query().rest(); err != nil {
		return err
	}
	rep, err := s.deps.Reconcile.Report(x.r.Context())
	if err != nil {
		return err
	}
	return x.json(http.StatusOK, rep)
}

// reconcileApply repairs what a report lists; the report is the body, as it was
// given.
func (s *Server) reconcileApply(x *exchange) error {
	if s.deps.Reconcile == nil {
		return notify.Unavailable("triggers", 0, nil)
	}
	if err := x.only(); err != nil {
		return err
	}
	var rep trigger.Report
	// Its digest says whether it is whole; the decoder only has to read it.
	if err := json.Unmarshal(x.body.data, &rep); err != nil || rep.Digest == "" {
		return notify.Invalid("bad_report", "", "the body is a report of POST /v1/ops/reconcile, unchanged")
	}
	done, err := s.deps.Reconcile.Apply(x.r.Context(), rep)
	if err != nil {
		return err
	}
	return x.json(http.StatusOK, done)
}
