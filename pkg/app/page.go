package app

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/web"
)

// pageKeyMeta is the name of the row of engine.Meta with the key of the operator page's sessions. A
// person with the key and a stolen cookie can read the token in the cookie. The key alone is not enough
// to make a session, because a session needs a valid token.
const pageKeyMeta = "operator_page_key"

// newPage returns the operator page. apiHandler is the API of this process.
func newPage(n *Node, apiHandler http.Handler, key []byte) http.Handler {
	user := func(ctx context.Context, token string) (web.User, error) { // returns the user to whom a token belongs
		id, err := n.verifier.Verify(ctx, token)
		if err != nil {
			return web.User{}, err
		}
		return web.User{Name: id.Caller, MayLook: id.Has(api.ScopeObserve), MayChange: id.Has(api.ScopeOperate)}, nil
	}
	p, err := web.New(web.Config{
		API: apiHandler, Key: key, Verify: user, Secure: strings.HasPrefix(n.cfg.publicURL(), "https:"), Log: n.log,
	})
	if err != nil {
		panic(fmt.Errorf("the operator page cannot be built: %w", err)) // a fault of the program, because the page's templates are part of it
	}
	return p
}
