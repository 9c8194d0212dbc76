package provider

import (
	"log/slog"
	"sync/atomic"

	"github.com/notifyd/notifyd/pkg/notify"
)

// tokenGuard keeps a push provider from giving every device up because a topic, an
// environment or a project is wrong. Until the first success of the process nothing
// says that the credentials belong to the tokens, so no answer says that a token is
// dead: the item fails and its token is not suppressed, and after guardLeast such
// answers all the others wait for the operator. One success refutes that for good,
// since the credentials are fixed while the process runs.
//
// Only users' own tokens count: a caller may name 200 made-up tokens in requests, and
// must not stop the pushes of all callers by them. It is safe for concurrent use.
type tokenGuard struct {
	code   string // the code of a result that waits because so many tokens are dead
	log    *slog.Logger
	proven atomic.Bool
	dead   atomic.Int64 // answers about users' tokens before the first success
	given  atomic.Int64 // the same about tokens of requests
}

// guardLeast is how many dead tokens the guard waits for before it judges.
const guardLeast = 200

// accepted notes a success.
func (g *tokenGuard) accepted() {
	if !g.proven.Load() {
		g.proven.Store(true)
	}
}

// judge corrects r, an answer that says that the item's token is dead, as long as
// there was no success.
func (g *tokenGuard) judge(it *notify.Item, r *notify.Result, then action) {
	switch {
	case g.proven.Load():
	case it.Given:
		r.Class = notify.ClassPermanent
		if g.given.Add(1) == guardLeast {
			g.log.Warn("tokens of requests are refused, and none was accepted yet: credentials, topic or environment may be wrong", "refused", guardLeast, "code", r.Code)
		}
	case then == otherProject:
		r.Class = notify.ClassConfig
	case g.dead.Add(1) >= guardLeast:
		r.Class, r.Code = notify.ClassConfig, g.code
	default:
		r.Class = notify.ClassPermanent
	}
}
