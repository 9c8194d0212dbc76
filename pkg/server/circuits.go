package server

import (
	"context"
	"net/http"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Circuits are the breakers of this process.
type Circuits interface {
	// List returns them by name.
	List() []api.Circuit
	// Set pins one "open" or "closed", or resets it ("reset");
	// notify.KindNotFound for an unknown name. It calls notify.BeforeAct.
	Set(ctx context.Context, name, to string) (api.Circuit, error)
}

// URLCheck resolves a callback URL and says of each address whether it may be
// connected to.
type URLCheck func(ctx context.Context, url string) (api.URLVerdict, error)

func (s *Server) listCircuits(x *exchange) error {
	if err := x.query().rest(); err != nil {
		return err
	}
	out := api.Circuits{Items: s.deps.Circuits.List()}
	if out.Items == nil {
		out.Items = []api.Circuit{}
	}
	return x.json(http.StatusOK, out)
}

func (s *Server) setCircuit(x *exchange) error {
	in, err := bodyOf[api.CircuitChange](x)
	if err != nil {
		return err
	}
	switch in.To {
	case "open", "closed", "reset":
	default:
		return notify.Invalid("bad_value", "to", "is open, closed or reset")
	}
	return x.reply(s.deps.Circuits.Set(x.r.Context(), x.r.PathValue("name"), in.To))
}

func (s *Server) checkURL(x *exchange) error {
	q := x.query()
	raw := q.text("url")
	if err := q.rest(); err != nil {
		return err
	}
	if raw == "" {
		return notify.Invalid("required", "url", "says what to look at")
	}
	return x.reply(s.deps.CheckURL(x.r.Context(), raw))
}
