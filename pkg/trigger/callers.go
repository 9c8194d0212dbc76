package trigger

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// maxBases is how many base URLs a caller may have.
const maxBases = 50

// CheckCaller returns what an operator wants a caller to be, with its base URLs
// in the spelling that is compared; or a notify.KindInvalid that names the
// field. Secrets are not looked at: RotateSecret makes them.
func CheckCaller(c engine.Caller, plain Plain) (engine.Caller, error) {
	switch {
	case c.ID == "" || len(c.ID) > notify.MaxCaller:
		return c, notify.Invalid("bad_caller", "id", fmt.Sprintf("a caller has 1 to %d bytes", notify.MaxCaller))
	case len(c.CallbackURLs) > maxBases:
		return c, notify.Invalid("out_of_range", "callback_urls", fmt.Sprintf("at most %d base URLs", maxBases))
	case c.MaxInFlight < 0 || c.MaxInFlight > 100_000:
		return c, notify.Invalid("out_of_range", "max_in_flight", "must be from 0 to 100,000")
	case c.MaxPending < 0:
		return c, notify.Invalid("out_of_range", "max_pending", "must not be negative")
	case !(c.Rate >= 0) || c.Burst < 0:
		return c, notify.Invalid("out_of_range", "rate", "rate and burst must not be negative")
	}
	bases := make([]string, len(c.CallbackURLs))
	for i, raw := range c.CallbackURLs {
		base, err := CheckBaseURL(fmt.Sprintf("callback_urls[%d]", i), raw, plain)
		if err != nil {
			return c, err
		}
		bases[i] = base
	}
	c.CallbackURLs = bases
	return c, nil
}

// DefaultOverlap is how long the old secret signs beside a new one.
const DefaultOverlap = 24 * time.Hour

// RotateSecret gives a caller a fresh secret and returns it; it is not shown
// again. The one before signs beside it until overlap has passed (0: not at
// all), one before that not any more. A caller that was never stored is
// notify.KindNotFound.
func RotateSecret(ctx context.Context, callers engine.Callers, id string, overlap time.Duration) (secret string, err error) {
	if overlap < 0 {
		return "", notify.Invalid("out_of_range", "overlap", "must not be negative")
	}
	for range swapTries {
		c, ok, err := callers.Get(ctx, id)
		if err != nil {
			return "", err
		}
		if !ok {
			return "", notify.NotFound("caller")
		}
		c, secret = Rotate(c, time.Now(), overlap)
		err = callers.Put(ctx, c)
		if notify.KindOf(err) != notify.KindConflict || err == nil {
			return secret, err
		}
	}
	return "", &notify.Error{Kind: notify.KindConflict, Code: "caller_changed", Msg: "the caller was changed meanwhile, again and again"}
}
