package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/notify"
)

// audit has what the request does recorded. Before the act either its handler calls
// record, or a service does through notify.BeforeAct, which knows its own checks
// best. The answer then names the first row.
func (x *exchange) audit() {
	x.audits = x.srv.deps.Audit != nil
	h := x.w.Header()
	ctx := deadletter.Witness(x.r.Context(), func(a api.AuditRow) { // jobs write their rows themselves
		if x.act.Seq == 0 {
			x.act = a
			h.Set(api.HeaderAuditID, strconv.FormatUint(a.Seq, 10))
		}
	})
	x.r = x.r.WithContext(notify.WithBeforeAct(ctx, x.record))
}

// of has what the request changes recorded if it is not the caller's own. Only an
// operator changes what belongs to another caller.
func (x *exchange) of(owner string) {
	if owner != x.id.Caller {
		x.audit()
	}
}

// record writes the row of the audit log for an act that is audited. A handler calls it
// when its own checks have passed, right before the act. When it returns an error the
// act must not happen. Tries after the first write no further row.
func (x *exchange) record() error {
	if !x.audits || x.act.Seq != 0 {
		return nil
	}
	act, err := x.describe()
	if err == nil {
		_, err = x.srv.deps.Audit.Record(x.r.Context(), act)
	}
	if err != nil {
		x.audits = false // there is no act, and its refusal could not be recorded either
	}
	return err
}

// recordRefusal writes the row of a request that ends with err, and returns err. A
// request that a check refused has only this row. One that a store refused during the
// act has two, of which api.FoldAudit shows the second. "failed" leaves open whether
// the act happened: the store did not say.
func (x *exchange) recordRefusal(err error) error {
	act := x.act
	if act.Seq == 0 {
		var bad error
		if act, bad = x.describe(); bad != nil {
			return err
		}
	}
	act.Result = "refused: "
	if k := notify.KindOf(err); x.act.Seq != 0 && (k == notify.KindInternal || k == notify.KindUnavailable) {
		act.Result = "failed: "
	}
	act.Result += problemCode(err)
	if _, rerr := x.srv.deps.Audit.Record(context.WithoutCancel(x.r.Context()), act); rerr != nil {
		return rerr
	}
	return err
}

// describe returns the row of the request. It returns notify.KindInvalid for a header
// that is too long.
func (x *exchange) describe() (api.AuditRow, error) {
	by, err := x.by()
	act := api.AuditRow{
		Actor: by.Caller, Target: x.r.PathValue("id") + x.r.PathValue("name"),
		Context: by.Context, Reason: by.Reason, Request: by.Request,
	}
	act.Action, act.Set = x.route.act(x.body.data)
	if len(x.body.data) > 0 { // not every body: it may hold a secret
		sum := sha256.Sum256(x.body.data)
		act.Digest = hex.EncodeToString(sum[:16])
	} else {
		act.Set = nil
	}
	return act, err
}

// maxRemark is how long the reason and the context of a change may be, in bytes.
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

func problemCode(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code != "" {
		return e.Code
	}
	return "internal"
}
