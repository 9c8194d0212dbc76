package server

import (
	"errors"
	"math"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/golang-jwt/jwt/v5"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// claims are what a token says; others than these are not looked at.
type claims struct {
	jwt.RegisteredClaims
	Scope string  `json:"scope"`
	Users *string `json:"users,omitempty"` // nil: of all users
}

// UnmarshalJSON reads claims strictly: names in their case, each once, each of
// its type. encoding/json would take a claim of the name "Scope" for "scope",
// and identity providers let people choose the names of claims of their own; it
// would also take an exp in quotes.
func (c *claims) UnmarshalJSON(b []byte) error {
	var in struct {
		Issuer   string         `json:"iss"`
		Subject  string         `json:"sub"`
		Audience jsontext.Value `json:"aud"`
		Expires  *float64       `json:"exp"`
		Before   *float64       `json:"nbf"`
		Issued   *float64       `json:"iat"`
		Scope    string         `json:"scope"`
		Users    *string        `json:"users"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		if e, ok := errors.AsType[*json.SemanticError](err); ok && e.JSONPointer != "" {
			return badClaim(request.FieldPath(e.JSONPointer), err)
		}
		if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok && errors.Is(e.Err, jsontext.ErrDuplicateName) {
			return unauthorized("token_claims", "a claim of the token is given twice", err)
		}
		return err
	}
	if in.Users != nil && notify.CheckUserID(*in.Users) != "" { // also an empty one: it would bind to nothing
		return badClaim("users", nil)
	}
	*c = claims{Scope: in.Scope, Users: in.Users}
	c.Issuer, c.Subject = in.Issuer, in.Subject
	if len(in.Audience) > 0 {
		if err := c.Audience.UnmarshalJSON(in.Audience); err != nil {
			return badClaim("aud", err)
		}
	}
	for name, t := range map[string]struct {
		from *float64
		to   **jwt.NumericDate
	}{"exp": {in.Expires, &c.ExpiresAt}, "nbf": {in.Before, &c.NotBefore}, "iat": {in.Issued, &c.IssuedAt}} {
		if t.from == nil {
			continue
		}
		if math.Abs(*t.from) > 1<<40 { // 36,812 years
			return badClaim(name, nil)
		}
		*t.to = jwt.NewNumericDate(time.UnixMilli(int64(*t.from * 1000)))
	}
	return nil
}

// badClaim says what type a claim has.
func badClaim(name string, err error) error {
	is := "a string"
	switch name {
	case "exp", "nbf", "iat":
		is = "a number, of seconds since 1970"
	case "aud":
		is = "a string or a list of strings"
	case "users":
		is = "a string, of what the user ids begin with that it may use, 1 to 128 bytes"
	case "scope":
		is = "a string, of scopes with spaces between"
	}
	return unauthorized("token_claims", "the token's "+name+" must be "+is, err)
}
