package server

import (
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// userID returns the path's user id.
func userID(x *exchange) (string, error) {
	id := x.r.PathValue("id")
	if rule := notify.CheckUserID(id); rule != "" {
		return "", notify.Invalid("bad_user_id", "id", rule)
	}
	if !strings.HasPrefix(id, x.id.Users) {
		return "", &notify.Error{Kind: notify.KindForbidden, Code: "user_forbidden", Field: "id", Msg: "the token is bound to other users"}
	}
	return id, nil
}

func getUser(x *exchange) (u api.User, err error) {
	if u.UserID, err = userID(x); err != nil {
		return u, err
	}
	p, err := x.srv.deps.Users.Get(x.r.Context(), u.UserID)
	u.Addresses, u.OptOut, u.TimeZone, u.Suppressed, u.Version = p.Addresses, p.OptOut, p.TimeZone, p.Suppressed, p.Version
	u.QuietHours = (*api.QuietHours)(p.QuietHours)
	return u, err
}

// putUser stores what a user set. A suppressed in the body is not handed on:
// which addresses are dead is what providers say, not a preference.
func putUser(x *exchange, u api.User) (api.UserVersion, error) {
	id, err := userID(x)
	if err == nil && u.UserID != "" && u.UserID != id {
		err = notify.Invalid("wrong_user", "user_id", "is another than the path's")
	}
	if err != nil {
		return api.UserVersion{}, err
	}
	p, err := x.srv.deps.Users.Put(x.r.Context(), engine.Profile{
		User: id, Addresses: u.Addresses, OptOut: u.OptOut, TimeZone: u.TimeZone, Version: u.Version, QuietHours: (*engine.QuietHours)(u.QuietHours),
	})
	return api.UserVersion{UserID: id, Version: p.Version}, err
}
