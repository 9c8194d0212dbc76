package app

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/web"
)

// pageKeyMeta is where the store keeps the key of the operator page's sessions. The
// key lets its holder read the token in a stolen cookie. It makes no session without
// a token that is good.
const pageKeyMeta = "operator_page_key"

// newPage makes the operator page over the API of this process.
func newPage(n *Node, of http.Handler, key []byte) http.Handler {
	user := func(ctx context.Context, token string) (web.User, error) { // who a token speaks for
		id, err := n.verifier.Verify(ctx, token)
		if err != nil {
			return web.User{}, err
		}
		return web.User{Name: id.Caller, MayLook: id.Has(api.ScopeObserve), MayChange: id.Has(api.ScopeOperate)}, nil
	}
	p, err := web.New(web.Config{
		API: of, Key: key, Verify: user, Secure: strings.HasPrefix(n.cfg.publicURL(), "https:"), Log: n.log,
	})
	if err != nil {
		panic(fmt.Errorf("the operator page: %w", err)) // its templates are part of the program
	}
	return p
}
