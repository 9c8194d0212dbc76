package server

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// Lanes lists and pauses the lanes of the workers.
type Lanes interface {
	// List returns every lane.
	List() []api.Lane
	// Set pauses or resumes a lane, for the operator with this name. When Set returns nil, the
	// change is durable. It returns notify.KindNotFound if no lane has the name.
	Set(ctx context.Context, name, operator string, change api.LaneChange) (api.Lane, error)
	// Paused returns when a lane was paused, by which operator and for which reason. The result ok
	// is false if the lane is not paused.
	Paused(lane notify.Lane) (since time.Time, operator, reason string, ok bool)
}

// Circuits lists and changes the breakers of all processes.
type Circuits interface {
	// List returns the breakers, ordered by name and process, and the processes that did not
	// answer.
	List(ctx context.Context) api.Circuits
	// Set forces a breaker to stay "open" or "closed", or returns it to normal operation ("reset").
	// It returns notify.KindNotFound if no breaker has the name. It calls notify.BeforeAct.
	Set(ctx context.Context, name, state string) (api.Circuit, error)
}

// Suppressions stores the suppressed addresses.
type Suppressions interface {
	// Suppressions returns a page of the suppressions, and the position of the next page. A nil
	// position means that this page is the last.
	Suppressions(ctx context.Context, q users.SuppressionQuery) (page []users.Suppression, next []byte, err error)
	// LiftSuppression removes the suppression of an address from the user's profile, or from every
	// profile if user is empty. The result lifted is how many profiles had the suppression, and
	// stillSuppressed is true if another profile still has it. LiftSuppression calls
	// notify.BeforeAct.
	LiftSuppression(ctx context.Context, user, address string) (lifted int, stillSuppressed bool, err error)
}

// TestProvider calls a provider, or one of its accounts, once. The call is a dry run or, if in.To
// is set, one real message. It returns notify.KindNotFound if no provider or account has the name,
// and notify.KindConflict if this process does not call the provider. It calls notify.BeforeAct
// before the call.
type TestProvider func(ctx context.Context, name string, in api.ProviderTestRequest) (api.ProviderTest, error)

// URLCheck resolves a callback URL. For each address it returns whether the address may be called.
type URLCheck func(ctx context.Context, url string) (api.URLVerdict, error)

func listLanes(x *exchange) (api.Lanes, error) {
	return api.Lanes{Items: x.srv.deps.Lanes.List()}, nil
}

func setLane(x *exchange, in api.LaneChange) (api.Lane, error) {
	name := x.r.PathValue("name")
	switch _, ok := notify.ParseLane(name); {
	case in.Paused == nil:
		return api.Lane{}, notify.Invalid("required", "paused", "is missing; true pauses the lane, false resumes it")
	case len(in.Reason) > maxRemark:
		return api.Lane{}, notify.Invalid("too_long", "reason", remarkTooLong(in.Reason))
	case !ok:
		return api.Lane{}, notify.NotFound("lane")
	}
	if err := x.recordAct(); err != nil {
		return api.Lane{}, err
	}
	return x.srv.deps.Lanes.Set(x.r.Context(), name, x.id.Caller, in)
}

func listCircuits(x *exchange) (api.Circuits, error) {
	out := x.srv.deps.Circuits.List(x.r.Context())
	out.Items = append([]api.Circuit{}, out.Items...)
	return out, nil
}

func setCircuit(x *exchange, in api.CircuitChange) (api.Circuit, error) {
	switch in.To {
	case "open", "closed", "reset":
		return x.srv.deps.Circuits.Set(x.r.Context(), x.r.PathValue("name"), in.To)
	}
	return api.Circuit{}, notify.Invalid("bad_value", "to", `must be "open", "closed" or "reset"`)
}

func checkURL(x *exchange) (api.URLVerdict, error) {
	raw := x.query.text("url")
	if raw == "" {
		return api.URLVerdict{}, notify.Invalid("required", "url", "is missing; it must be the URL to check")
	}
	return x.srv.deps.CheckURL(x.r.Context(), raw)
}

func listSuppressions(x *exchange) (page api.Suppressions, err error) {
	q := users.SuppressionQuery{
		User: x.query.text("user_id"), Address: x.query.text("address"), Code: x.query.text("code"), Limit: x.pageSize(),
	}
	channel := x.query.text("channel")
	bound := []string{"suppressions", q.User, channel, q.Address, q.Code, x.id.Caller}
	if q.After, err = x.cursorPosition(bound); err != nil {
		return page, err
	}
	var ok bool
	if q.Channel, ok = notify.ParseChannel(channel); channel != "" && !ok {
		return page, notify.Invalid("bad_channel", "channel", "must be push, sms or email")
	}
	found, next, err := x.srv.deps.Suppressions.Suppressions(x.r.Context(), q)
	page.Items = mapSlice(found, func(e *users.Suppression) api.Suppression {
		return api.Suppression{UserID: e.User, Channel: e.Channel.String(), Address: e.Address, Code: e.Code}
	})
	page.Cursor = x.srv.cursors.sealCursor(next, bound...)
	return page, err
}

func liftSuppression(x *exchange, in api.SuppressionLift) (out api.SuppressionLifted, err error) {
	switch {
	case in.Address == "" || len(in.Address) > notify.MaxAddress:
		return out, notify.Invalid("bad_address", "address", "must have 1 to 512 bytes")
	case in.UserID != "":
		if rule := notify.CheckUserID(in.UserID); rule != "" {
			return out, notify.Invalid("bad_user_id", "user_id", rule)
		}
	}
	out.Address = in.Address
	out.Lifted, out.StillSuppressed, err = x.srv.deps.Suppressions.LiftSuppression(x.r.Context(), in.UserID, in.Address)
	if err == nil && out.Lifted == 0 {
		err = notify.NotFound("suppression")
	}
	return out, err
}

func testProvider(x *exchange, in api.ProviderTestRequest) (api.ProviderTest, error) {
	return x.srv.deps.TestProvider(x.r.Context(), x.r.PathValue("name"), in)
}

// runConservation compares what was accepted with its outcomes. It has no deadline, because it
// reads everything that was accepted in the requested time.
func runConservation(x *exchange) (api.Conservation, error) {
	if x.srv.deps.Conservation == nil {
		return api.Conservation{}, unavailable("audit_unavailable")
	}
	var since time.Time
	if ms := x.query.moment("since"); ms != 0 {
		since = timeOf(ms)
	}
	x.deadlines(time.Time{}, time.Time{})
	defer func() { x.deadlines(time.Time{}, time.Now().Add(x.srv.cfg.WriteTimeout)) }()
	return x.srv.deps.Conservation(x.r.Context(), since)
}

func unavailable(code string) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: code, Msg: "no role of this process answers this request; ask another process"}
}

// report returns the Report of GET /v1/ops/<name>, or nil if this process does not have it.
func (d *Deps) report(name string) Report {
	switch name {
	case "doctor":
		return listReport(d.Doctor)
	case "lag":
		return listReport(d.Lag)
	case "rates":
		return d.Rates
	case "accounts":
		return d.Accounts
	}
	return d.Debug
}

// listReport changes a Report that returns a list: the answer has the list under "items", like all
// lists of the API.
func listReport(ask Report) Report {
	if ask == nil {
		return nil
	}
	return func(ctx context.Context) (any, error) {
		list, err := ask(ctx)
		if v := reflect.ValueOf(list); err == nil && v.Kind() == reflect.Slice && v.IsNil() {
			list = []any{}
		}
		return map[string]any{"items": list}, err
	}
}

// reportHandler returns a handler that answers with the report of this name. If there is no such
// report, it answers 503 with the error code <name>_unavailable.
func reportHandler(name string) handler {
	return func(x *exchange) error {
		ask := x.srv.deps.report(name)
		if ask == nil {
			return unavailable(name + "_unavailable")
		}
		return x.reply(ask(x.r.Context()))
	}
}

func serveOpenAPI(x *exchange) error {
	x.w.Header().Set("Content-Type", "application/yaml")
	x.write(http.StatusOK, openapiYAML)
	return nil
}
