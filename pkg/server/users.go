package server

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
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

// decode reads the body as one strict JSON value: no unknown or double fields,
// no invalid UTF-8, nothing behind it.
func (x *exchange) decode(v any) error {
	if ct := x.r.Header.Get("Content-Type"); ct != "" {
		media, _, _ := strings.Cut(ct, ";")
		if !strings.EqualFold(strings.TrimSpace(media), api.TypeJSON) {
			return notify.Invalid(api.CodeUnsupportedMediaType, "Content-Type", "must be "+api.TypeJSON)
		}
	}
	if len(bytes.TrimSpace(x.body.data)) == 0 {
		return notify.Invalid(api.CodeMalformed, "", "the body is empty")
	}
	err := json.Unmarshal(x.body.data, v, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		if errors.Is(e.Err, json.ErrUnknownName) {
			return notify.Invalid("unknown_field", fieldPath(e.JSONPointer), "there is no such field")
		}
		return notify.Invalid("wrong_type", fieldPath(e.JSONPointer), "is of another type than it should be")
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		switch {
		case errors.Is(e.Err, jsontext.ErrDuplicateName):
			return notify.Invalid("duplicate_key", fieldPath(e.JSONPointer), "the field is given twice")
		case errors.Is(e.Err, io.ErrUnexpectedEOF):
			return notify.Invalid(api.CodeMalformed, "", "the JSON ends too early")
		}
	}
	return notify.Invalid(api.CodeMalformed, "", "not valid JSON")
}

// fieldPath makes /quiet_hours/from quiet_hours.from.
func fieldPath(p jsontext.Pointer) string {
	var parts []string
	for tok := range p.Tokens() {
		parts = append(parts, tok)
	}
	return strings.ToValidUTF8(clip(strings.Join(parts, "."), 200), "")
}
