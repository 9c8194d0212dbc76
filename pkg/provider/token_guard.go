package provider

import (
	"log/slog"
	"sync/atomic"

	"github.com/notifyd/notifyd/pkg/notify"
)

// tokenGuard prevents a push client from suppressing every device because a topic, an
// environment or a project is configured wrongly. Before the first accepted push of the process
// nothing proves that the credentials fit the device tokens. Until then an answer that a token
// is dead only fails the item and does not suppress the token. After guardLeast such answers,
// further items wait for the operator. One accepted push ends this for good, because the
// credentials do not change while the process runs.
//
// Only tokens from users' profiles count. Otherwise a caller could stop the pushes of all
// callers by naming 200 invented tokens in requests. tokenGuard is safe for concurrent use.
type tokenGuard struct {
	code   string // code of a result that waits because too many tokens are dead
	log    *slog.Logger
	proven atomic.Bool
	dead   atomic.Int64 // answers about tokens of profiles before the first accepted push
	given  atomic.Int64 // the same about tokens given in requests
}

// guardLeast is the number of dead tokens after which the guard assumes a configuration error.
const guardLeast = 200

// accepted notes an accepted push.
func (g *tokenGuard) accepted() {
	if !g.proven.Load() {
		g.proven.Store(true)
	}
}

// correctDeadToken corrects r, an answer that the item's token is dead, as long as no push was accepted.
func (g *tokenGuard) correctDeadToken(it *notify.Item, r *notify.Result, then answerAction) {
	switch {
	case g.proven.Load():
	case it.Given:
		r.Class = notify.ClassPermanent
		if g.given.Add(1) == guardLeast {
			g.log.Warn("the provider refused many device tokens given in requests and has accepted none yet; check credentials, topic and environment", "refused", guardLeast, "code", r.Code)
		}
	case then == otherProject:
		r.Class = notify.ClassConfig
	case g.dead.Add(1) >= guardLeast:
		r.Class, r.Code = notify.ClassConfig, g.code
	default:
		r.Class = notify.ClassPermanent
	}
}
