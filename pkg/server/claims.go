package server

import (
	"errors"
	"math"
	"strconv"
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
// and identity providers let people choose the names of claims of their own.
func (c *claims) UnmarshalJSON(b []byte) error {
	type plain claims // without this method
	err := json.Unmarshal(b, (*plain)(c), json.WithUnmarshalers(json.UnmarshalFunc(readDate)))
	if e, ok := errors.AsType[*json.SemanticError](err); ok && e.JSONPointer != "" {
		return badClaim(request.FieldPath(e.JSONPointer), err)
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok && errors.Is(e.Err, jsontext.ErrDuplicateName) {
		return unauthorized("token_claims", "a claim of the token is given twice", err)
	}
	if err == nil && c.Users != nil && notify.CheckUserID(*c.Users) != "" { // also an empty one: it would bind to nothing
		return badClaim("users", nil)
	}
	return err
}

// readDate reads a time of a claim. The library would take one in quotes, and one that
// overflows.
func readDate(b []byte, to *jwt.NumericDate) error {
	seconds, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.Abs(seconds) > 1<<40 { // 36,812 years
		return errors.New("not seconds since 1970")
	}
	*to = *jwt.NewNumericDate(time.UnixMilli(int64(seconds * 1000)))
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
