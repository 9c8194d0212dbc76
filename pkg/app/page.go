package app

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/web"
)

// page makes the operator page over the API of this process.
func (n *Node) page(of http.Handler) http.Handler {
	p, err := web.New(web.Config{
		API: of, Verify: n.pageUser, Secure: strings.HasPrefix(n.cfg.publicURL(), "https:"), Log: n.log,
	})
	if err != nil {
		panic(fmt.Errorf("the operator page: %w", err)) // its templates are part of the program
	}
	return p
}

// pageUser is who a token speaks for on the page.
func (n *Node) pageUser(ctx context.Context, token string) (web.User, error) {
	id, err := n.verifier.Verify(ctx, token)
	if err != nil {
		return web.User{}, err
	}
	return web.User{Name: id.Caller, MayLook: id.Has(api.ScopeObserve), MayChange: id.Has(api.ScopeOperate)}, nil
}
