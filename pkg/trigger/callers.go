package trigger

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

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
