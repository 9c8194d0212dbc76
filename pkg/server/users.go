package server

import (
	"net/http"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// user returns the path's user id.
func (x *exchange) user() (string, error) {
	id := x.r.PathValue("id")
	if rule := notify.CheckUserID(id); rule != "" {
		return "", notify.Invalid("bad_user_id", "id", rule)
	}
	if !strings.HasPrefix(id, x.id.Users) {
		return "", &notify.Error{Kind: notify.KindForbidden, Code: "user_forbidden", Field: "id", Msg: "the token is bound to other users"}
	}
	return id, nil
}

func (s *Server) getUser(x *exchange) error {
	if err := x.only(); err != nil {
		return err
	}
	id, err := x.user()
	if err != nil {
		return err
	}
	p, err := s.deps.Users.Get(x.r.Context(), id)
	if err != nil {
		return err
	}
	u := api.User{
		UserID: id, Addresses: p.Addresses, OptOut: p.OptOut, TimeZone: p.TimeZone,
		Suppressed: p.Suppressed, Version: p.Version,
	}
	if p.QuietHours != nil {
		u.QuietHours = &api.QuietHours{From: p.QuietHours.From, To: p.QuietHours.To}
	}
	return x.json(http.StatusOK, u)
}

// putUser stores what a user set. A suppressed in the body is not handed on:
// which addresses are dead is what providers say, not a preference.
func (s *Server) putUser(x *exchange) error {
	if err := x.only(); err != nil {
		return err
	}
	id, err := x.user()
	if err != nil {
		return err
	}
	var u api.User
	if err := x.decode(&u); err != nil {
		return err
	}
	if u.UserID != "" && u.UserID != id {
		return notify.Invalid("wrong_user", "user_id", "is another than the path's")
	}
	p := engine.Profile{User: id, Addresses: u.Addresses, OptOut: u.OptOut, TimeZone: u.TimeZone, Version: u.Version}
	if u.QuietHours != nil {
		p.QuietHours = &engine.QuietHours{From: u.QuietHours.From, To: u.QuietHours.To}
	}
	if p, err = s.deps.Users.Put(x.r.Context(), p); err != nil {
		return err
	}
	return x.json(http.StatusOK, api.UserVersion{UserID: id, Version: p.Version})
}

// decode reads the body as one JSON value, strictly (request.Decode).
func (x *exchange) decode(v any) error {
	if request.Media(x.r.Header.Get("Content-Type")) != request.JSON {
		return request.Unsupported(request.JSON)
	}
	return request.Decode(x.body.data, v)
}

// bodyOf reads the body of a route without parameters.
func bodyOf[T any](x *exchange) (in T, err error) {
	if err = x.only(); err == nil {
		err = x.decode(&in)
	}
	return in, err
}
