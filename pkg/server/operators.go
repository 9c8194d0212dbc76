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

// Lanes are the lanes of the workers.
type Lanes interface {
	// List returns every lane.
	List() []api.Lane
	// Set pauses a lane, or lets it go on, in the name of by; durable when it returns nil.
	// notify.KindNotFound for an unknown name.
	Set(ctx context.Context, name, by string, to api.LaneChange) (api.Lane, error)
	// Paused says since when, by whom and why a lane claims nothing; ok is false
	// when it does.
	Paused(lane notify.Lane) (since time.Time, by, reason string, ok bool)
}

// Circuits are the breakers of all processes.
type Circuits interface {
	// List returns them by name and process, and the processes that did not answer.
	List(ctx context.Context) api.Circuits
	// Set pins one "open" or "closed", or resets it ("reset");
	// notify.KindNotFound for an unknown name. It calls notify.BeforeAct.
	Set(ctx context.Context, name, to string) (api.Circuit, error)
}

// Suppressions keeps the addresses that nothing is sent to.
type Suppressions interface {
	// Suppressions returns a page of the list, and the place to go on; nil at the end.
	Suppressions(ctx context.Context, q users.SuppressionQuery) (list []users.Suppression, next []byte, err error)
	// Lift takes an address off the user's profile, or off all that list it when user
	// is empty. It returns how many did, and whether another still does. It calls
	// notify.BeforeAct.
	Lift(ctx context.Context, user, address string) (lifted int, still bool, err error)
}

// TestProvider calls a provider, or one of its accounts, once: its dry run, or with
// in.To one real message. It returns notify.KindNotFound for an unknown name and
// notify.KindConflict where this process does not call the provider. It calls
// notify.BeforeAct before the provider.
type TestProvider func(ctx context.Context, name string, in api.ProviderTestRequest) (api.ProviderTest, error)

// URLCheck resolves a callback URL and says of each address whether it may be
// connected to.
type URLCheck func(ctx context.Context, url string) (api.URLVerdict, error)

func listLanes(x *exchange) (api.Lanes, error) {
	return api.Lanes{Items: x.srv.deps.Lanes.List()}, nil
}

func setLane(x *exchange, in api.LaneChange) (api.Lane, error) {
	name := x.r.PathValue("name")
	switch _, ok := notify.ParseLane(name); {
	case in.Paused == nil:
		return api.Lane{}, notify.Invalid("required", "paused", "says whether the lane is paused")
	case len(in.Reason) > maxRemark:
		return api.Lane{}, notify.Invalid("too_long", "reason", "at most 512 bytes")
	case !ok:
		return api.Lane{}, notify.NotFound("lane")
	}
	if err := x.record(); err != nil {
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
	return api.Circuit{}, notify.Invalid("bad_value", "to", "is open, closed or reset")
}

func checkURL(x *exchange) (api.URLVerdict, error) {
	raw := x.query.text("url")
	if raw == "" {
		return api.URLVerdict{}, notify.Invalid("required", "url", "says what to look at")
	}
	return x.srv.deps.CheckURL(x.r.Context(), raw)
}

func listSuppressions(x *exchange) (page api.Suppressions, err error) {
	q := users.SuppressionQuery{
		User: x.query.text("user_id"), Address: x.query.text("address"), Code: x.query.text("code"), Limit: x.pageSize(),
	}
	channel := x.query.text("channel")
	bound := []string{"suppressions", q.User, channel, q.Address, q.Code, x.id.Caller}
	if q.After, err = x.place(bound); err != nil {
		return page, err
	}
	var ok bool
	if q.Channel, ok = notify.ParseChannel(channel); channel != "" && !ok {
		return page, notify.Invalid("bad_channel", "channel", "there is no such channel; use push, sms or email")
	}
	found, next, err := x.srv.deps.Suppressions.Suppressions(x.r.Context(), q)
	page.Items = mapped(found, func(e *users.Suppression) api.Suppression {
		return api.Suppression{UserID: e.User, Channel: e.Channel.String(), Address: e.Address, Code: e.Code}
	})
	page.Cursor = x.srv.cursors.seal(next, bound...)
	return page, err
}

func liftSuppression(x *exchange, in api.SuppressionLift) (out api.SuppressionLifted, err error) {
	switch {
	case in.Address == "" || len(in.Address) > notify.MaxAddress:
		return out, notify.Invalid("bad_address", "address", "an address has 1 to 512 bytes")
	case in.UserID != "":
		if rule := notify.CheckUserID(in.UserID); rule != "" {
			return out, notify.Invalid("bad_user_id", "user_id", rule)
		}
	}
	out.Address = in.Address
	out.Lifted, out.Still, err = x.srv.deps.Suppressions.Lift(x.r.Context(), in.UserID, in.Address)
	if err == nil && out.Lifted == 0 {
		err = notify.NotFound("suppression")
	}
	return out, err
}

func testProvider(x *exchange, in api.ProviderTestRequest) (api.ProviderTest, error) {
	return x.srv.deps.TestProvider(x.r.Context(), x.r.PathValue("name"), in)
}

// runConservation adds up what was accepted. It takes as long as it takes: it reads
// all that was accepted in the time that is asked for.
func runConservation(x *exchange) (api.Conservation, error) {
	if x.srv.deps.Conservation == nil {
		return api.Conservation{}, unavailable("audit_unavailable")
	}
	var since time.Time
	if ms := x.query.moment("since"); ms != 0 {
		since = moment(ms)
	}
	x.deadlines(time.Time{}, time.Time{})
	defer func() { x.deadlines(time.Time{}, time.Now().Add(x.srv.cfg.WriteTimeout)) }()
	return x.srv.deps.Conservation(x.r.Context(), since)
}

func unavailable(code string) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: code, Msg: "this server's roles do not include what answers this"}
}

// report returns what answers GET /v1/ops/name; nil: nothing does.
func (d *Deps) report(name string) Report {
	switch name {
	case "doctor":
		return itemsOf(d.Doctor)
	case "lag":
		return itemsOf(d.Lag)
	case "rates":
		return d.Rates
	case "accounts":
		return d.Accounts
	}
	return d.Debug
}

// itemsOf makes a report that says a list say it as every list of the API is answered.
func itemsOf(ask Report) Report {
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

// reports makes a handler that answers with what a report says; without one with 503 of
// the code name_unavailable.
func reports(name string) handler {
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
