package server

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// Limits of a caller's settings.
const (
	maxCallbackURLs  = 32
	maxFinalStatuses = 50
	maxOverlap       = 30 * 24 * time.Hour
	defaultOverlap   = 24 * time.Hour
)

func callerToAPI(c *engine.Caller) api.Caller {
	out := api.Caller{
		ID: c.ID, Rate: c.Rate, Burst: c.Burst, Disabled: c.Disabled, CallbackURLs: c.CallbackURLs,
		MaxInFlight: c.MaxInFlight, MaxPending: c.MaxPending, FinalStatuses: c.FinalStatuses, OutcomesURL: c.OutcomesURL, OutcomesOf: c.OutcomesOf, Version: c.Version,
	}
	for _, s := range c.Secrets {
		out.Secrets = append(out.Secrets, api.CallerSecret{CreatedAt: timeOf(s.Created), ExpiresAt: optionalTimeOf(s.Expires)})
	}
	return out
}

// callerID returns the caller id in the path, if it is valid.
func callerID(x *exchange) (string, error) {
	id := x.r.PathValue("id")
	if !checkCaller(id) {
		return "", notify.Invalid("bad_caller", "id", "must have 1 to "+strconv.Itoa(notify.MaxCaller)+" letters, digits and ._:@/|+-, like the sub of a token")
	}
	return id, nil
}

func listCallers(x *exchange) (api.Callers, error) {
	cs, err := x.srv.deps.Callers.List(x.r.Context())
	return api.Callers{Items: mapSlice(cs, callerToAPI)}, err
}

func getCaller(x *exchange) (api.Caller, error) {
	id, err := callerID(x)
	if err != nil {
		return api.Caller{}, err
	}
	c, ok, err := x.srv.deps.Callers.Get(x.r.Context(), id)
	if err == nil && !ok {
		err = notify.NotFound("caller")
	}
	return callerToAPI(&c), err
}

// checkOutcomesURL returns an error if the egress policy does not allow the URL, because outcomes
// for such a URL would wait forever. It always accepts the URL that the caller already has.
// Otherwise a caller whose URL is no longer allowed could not be disabled.
func checkOutcomesURL(x *exchange, id, url string) error {
	deps := &x.srv.deps
	if deps.AdmitURL == nil {
		return nil
	}
	err := deps.AdmitURL("outcomes_url", url)
	if err == nil {
		return nil
	}
	c, ok, gerr := deps.Callers.Get(x.r.Context(), id)
	if gerr != nil || ok && c.OutcomesURL == url {
		return gerr
	}
	return err
}

// checkCallerSettings returns an error if a setting breaks a rule. It puts URLs and statuses into
// canonical form.
func checkCallerSettings(x *exchange, id string, in *api.Caller) (err error) {
	plain := trigger.Plain(x.srv.deps.PlainCallbacks)
	switch {
	case in.ID != "" && in.ID != id:
		return notify.Invalid("wrong_caller", "id", "differs from the id in the path")
	case in.Secrets != nil:
		return notify.Invalid("unknown_field", "secrets", "cannot be set; POST /v1/ops/callers/{id}/secrets makes a secret")
	case in.Rate < 0 || in.Burst < 0 || in.MaxInFlight < 0 || in.MaxPending < 0:
		return notify.Invalid("out_of_range", "", "rate, burst, max_in_flight and max_pending must not be below 0")
	case len(in.CallbackURLs) > maxCallbackURLs:
		return notify.Invalid("too_many_items", "callback_urls", "has "+strconv.Itoa(len(in.CallbackURLs))+" base URLs; the maximum is "+strconv.Itoa(maxCallbackURLs))
	case len(in.FinalStatuses) > maxFinalStatuses:
		return notify.Invalid("too_many_items", "final_statuses", "has "+strconv.Itoa(len(in.FinalStatuses))+" statuses; the maximum is "+strconv.Itoa(maxFinalStatuses))
	case in.OutcomesOf != "" && in.OutcomesOf != engine.OutcomesFailed && in.OutcomesOf != engine.OutcomesAll:
		return notify.Invalid("bad_outcomes_of", "outcomes_of", `must be "failed" or "all"`)
	case in.OutcomesOf == engine.OutcomesAll && in.OutcomesURL == "":
		return notify.Invalid("bad_outcomes_of", "outcomes_of", `"all" needs an outcomes_url`)
	}
	for i, status := range in.FinalStatuses {
		if status < 300 || status > 599 {
			return notify.Invalid("out_of_range", "final_statuses["+strconv.Itoa(i)+"]", "must be an HTTP status from 300 to 599; a 2xx status always means success")
		}
	}
	for i, u := range in.CallbackURLs {
		if in.CallbackURLs[i], err = trigger.CheckBaseURL("callback_urls["+strconv.Itoa(i)+"]", u, plain); err != nil {
			return err
		}
	}
	slices.Sort(in.FinalStatuses)
	slices.Sort(in.CallbackURLs)
	in.FinalStatuses, in.CallbackURLs = slices.Compact(in.FinalStatuses), slices.Compact(in.CallbackURLs)
	if in.OutcomesURL == "" {
		return nil
	}
	if in.OutcomesURL, err = trigger.CheckCallback("outcomes_url", in.OutcomesURL, in.CallbackURLs, plain); err != nil {
		return err
	}
	return checkOutcomesURL(x, id, in.OutcomesURL)
}

// putCaller replaces a caller's settings and keeps its secrets.
func putCaller(x *exchange, in api.Caller) (api.Caller, error) {
	id, err := callerID(x)
	if err == nil {
		err = checkCallerSettings(x, id, &in)
	}
	if err != nil {
		return api.Caller{}, err
	}
	c, err := updateCaller(x, id, in.Version, func(c *engine.Caller) {
		c.Rate, c.Burst, c.Disabled = in.Rate, in.Burst, in.Disabled
		c.CallbackURLs, c.MaxInFlight, c.MaxPending = in.CallbackURLs, in.MaxInFlight, in.MaxPending
		c.FinalStatuses, c.OutcomesOf = in.FinalStatuses, in.OutcomesOf
		switch {
		case in.OutcomesURL == "":
			c.OutcomesSince = 0
		case c.OutcomesURL == "": // a changed URL continues where the old URL stopped
			c.OutcomesSince = x.srv.deps.Now().UnixMilli()
		}
		c.OutcomesURL = in.OutcomesURL
	})
	return callerToAPI(&c), err
}

// rotateSecret gives a caller a new signing secret. Only this answer shows the secret.
func rotateSecret(x *exchange) error {
	id, err := callerID(x)
	if err != nil {
		return err
	}
	var in struct {
		OverlapSeconds *float64 `json:"overlap_seconds"`
	}
	if err := x.decode(&in); err != nil {
		return err
	}
	overlap := defaultOverlap
	if in.OverlapSeconds != nil {
		if *in.OverlapSeconds < 0 || *in.OverlapSeconds > maxOverlap.Seconds() {
			return notify.Invalid("out_of_range", "overlap_seconds", "must be from 0 to 2592000 (30 days)")
		}
		overlap = time.Duration(*in.OverlapSeconds * float64(time.Second))
	}
	now := x.srv.deps.Now()
	out := api.RotatedSecret{Caller: id, RotatedAt: now.UTC()}
	c, err := updateCaller(x, id, 0, func(c *engine.Caller) { *c, out.Secret = trigger.Rotate(*c, now, overlap) })
	if err != nil {
		return err
	}
	if len(c.Secrets) > 1 {
		out.OldUntil = optionalTimeOf(c.Secrets[1].Expires)
	}
	return x.json(http.StatusCreated, out)
}

// updateCaller reads, changes and stores a caller. If another request changes the caller in the
// meantime, updateCaller starts again. After 8 tries it returns an error with the code
// "caller_contended". If the parameter version is not 0, it must equal the stored version.
func updateCaller(x *exchange, id string, version uint64, change func(*engine.Caller)) (engine.Caller, error) {
	for range 8 {
		c, _, err := x.srv.deps.Callers.Get(x.r.Context(), id)
		if err != nil {
			return c, err
		}
		if version != 0 && c.Version != version {
			return c, &notify.Error{Kind: notify.KindConflict, Code: "version_changed", Field: "version", Msg: "another request has changed the caller; read the caller again"}
		}
		c.ID = id
		change(&c)
		if err := x.recordAct(); err != nil {
			return c, err
		}
		err = x.srv.deps.Callers.Put(x.r.Context(), c)
		if err == nil {
			x.srv.callers.forgetSettings(id)
			c.Version++
			return c, nil
		}
		if notify.KindOf(err) != notify.KindConflict {
			return c, err
		}
	}
	return engine.Caller{}, notify.Unavailable("caller_contended", time.Second, nil)
}
