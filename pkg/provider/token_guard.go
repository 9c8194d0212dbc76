package provider

import (
	"log/slog"
	"sync/atomic"

	"github.com/notifyd/notifyd/pkg/notify"
)

// tokenGuard prevents a push client from suppressing every device because a topic, an environment
// or a project is configured wrongly. Until the provider has accepted a push of this process,
// nothing proves that the credentials fit the device tokens. If the provider reports a token as
// dead in that time, the item fails, but the token is not put into the suppression list. From the
// answer number guardLeast on, items that get such an answer end with ClassConfig instead of
// failing, and wait for the operator. After the first accepted push, the guard does nothing more,
// because the credentials do not change while the process runs.
//
// Tokens that came with requests, and not from profiles, do not count. Otherwise a caller could
// stop the pushes of all callers by sending requests with 200 invented tokens. tokenGuard is safe
// for concurrent use.
type tokenGuard struct {
	code   string // code of the results after guardLeast dead tokens
	log    *slog.Logger
	proven atomic.Bool
	dead   atomic.Int64 // dead tokens from profiles before the first accepted push
	given  atomic.Int64 // dead tokens given in requests before the first accepted push
}

// guardLeast is the number of dead tokens after which the guard assumes a configuration error.
const guardLeast = 200

// noteAccepted tells the guard that the provider has accepted a push. The guard then does nothing
// more.
func (g *tokenGuard) noteAccepted() {
	if !g.proven.Load() {
		g.proven.Store(true)
	}
}

// correctDeadToken corrects r, a result that reports the item's token as dead. After the first accepted
// push it leaves r unchanged.
func (g *tokenGuard) correctDeadToken(it *notify.Item, r *notify.Result, then answerAction) {
	switch {
	case g.proven.Load():
	case it.FromRequest:
		r.Class = notify.ClassPermanent
		if g.given.Add(1) == guardLeast {
			g.log.Warn("the provider refused many device tokens given in requests and has not accepted any push yet; check credentials, topic and environment", "refused", guardLeast, "code", r.Code)
		}
	case then == otherProject:
		r.Class = notify.ClassConfig
	case g.dead.Add(1) >= guardLeast:
		r.Class, r.Code = notify.ClassConfig, g.code
	default:
		r.Class = notify.ClassPermanent
	}
}
