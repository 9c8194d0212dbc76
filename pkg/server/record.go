package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/notify"
)

// startAudit makes the audit log record the request. The first row is written after all checks and
// before the act: a handler calls recordAct, or a service calls notify.BeforeAct. The answer has
// the number of the first row in the header HeaderAuditID.
func (x *exchange) startAudit() {
	x.audits = x.srv.deps.Audit != nil
	h := x.w.Header()
	ctx := deadletter.Witness(x.r.Context(), func(a api.AuditRow) { // jobs write their own rows
		if x.auditRow.Seq == 0 {
			x.auditRow = a
			h.Set(api.HeaderAuditID, strconv.FormatUint(a.Seq, 10))
		}
	})
	x.r = x.r.WithContext(notify.WithBeforeAct(ctx, x.recordAct))
}

// auditIfForeign makes the audit log record the request if it changes data of another caller. Only
// operators can do that.
func (x *exchange) auditIfForeign(owner string) {
	if owner != x.id.Caller {
		x.startAudit()
	}
}

// recordAct writes the first audit row of the request. A handler calls it after its own checks,
// immediately before the act. If recordAct returns an error, the act must not happen. Later calls
// for the same request write nothing.
func (x *exchange) recordAct() error {
	if !x.audits || x.auditRow.Seq != 0 {
		return nil
	}
	act, err := x.describeAct()
	if err == nil {
		_, err = x.srv.deps.Audit.Record(x.r.Context(), act)
	}
	if err != nil {
		x.audits = false // the act does not happen, and a row about its refusal cannot be written either
	}
	return err
}

// recordRefusal writes the audit row of a request that ends with err, and returns err. If a check
// refused the request, this is its only row. If a store refused it during the act, this is its
// second row, and api.FoldAudit shows only this row. The result "failed" means that the act may
// have happened, because the store did not say whether it happened.
func (x *exchange) recordRefusal(err error) error {
	act := x.auditRow
	if act.Seq == 0 {
		var bad error
		if act, bad = x.describeAct(); bad != nil {
			return err
		}
	}
	act.Result = "refused: "
	if k := notify.KindOf(err); x.auditRow.Seq != 0 && (k == notify.KindInternal || k == notify.KindUnavailable) {
		act.Result = "failed: "
	}
	act.Result += problemCode(err)
	if _, rerr := x.srv.deps.Audit.Record(context.WithoutCancel(x.r.Context()), act); rerr != nil {
		return rerr
	}
	return err
}

// describeAct returns the audit row of the request. It returns notify.KindInvalid if a header is
// too long.
func (x *exchange) describeAct() (api.AuditRow, error) {
	by, err := x.actor()
	act := api.AuditRow{
		Actor: by.Caller, Target: x.r.PathValue("id") + x.r.PathValue("name"),
		Context: by.Context, Reason: by.Reason, Request: by.Request,
	}
	act.Action, act.Set = x.route.act(x.body.data)
	if len(x.body.data) > 0 { // only a digest, because the body may contain a secret
		sum := sha256.Sum256(x.body.data)
		act.Digest = hex.EncodeToString(sum[:16])
	} else {
		act.Set = nil
	}
	return act, err
}

// maxRemark is the longest reason or context of a change, in bytes.
const maxRemark = 512

func remarkTooLong(remark string) string {
	return fmt.Sprintf("has %d bytes; the maximum is %d", len(remark), maxRemark)
}

// actor returns who makes the request: the token's caller, with the context and the reason in the
// headers.
func (x *exchange) actor() (deadletter.By, error) {
	by := deadletter.By{Caller: x.id.Caller, Request: x.requestID}
	for name, to := range map[string]*string{api.HeaderContext: &by.Context, api.HeaderReason: &by.Reason} {
		v := x.r.Header.Get(name)
		if len(v) > maxRemark {
			return by, notify.Invalid("too_long", name, remarkTooLong(v))
		}
		*to = v
	}
	return by, nil
}

func problemCode(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code != "" {
		return e.Code
	}
	return "internal"
}
