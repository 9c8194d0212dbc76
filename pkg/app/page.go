package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/web"
)

// pageKeyMeta is where the store keeps the key of the operator page's sessions. The
// key lets its holder read the token in a stolen cookie. It makes no session without
// a token that is good.
const pageKeyMeta = "operator_page_key"

// pageKey returns the key of the operator page's sessions. The first process makes
// it; of several that do so at the same moment one wins, and all use its key.
func pageKey(ctx context.Context, meta engine.Meta) ([]byte, error) {
	fresh := make([]byte, 32)
	rand.Read(fresh) // never fails
	for {
		key, err := meta.GetMeta(ctx, pageKeyMeta)
		if err != nil || len(key) > 0 {
			return key, err
		}
		if stored, err := meta.SwapMeta(ctx, pageKeyMeta, key, fresh); err != nil || stored {
			return fresh, err
		}
	}
}

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
