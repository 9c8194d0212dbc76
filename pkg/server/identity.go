package server

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/golang-jwt/jwt/v5"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// Identity is the caller of a verified token, with the rights of the token.
type Identity struct {
	Caller string // the claim sub of the token
	// Users is the prefix of the user ids that the token may read, write and send to (claim
	// "users"). Empty means all users. A token with a prefix never has operators' scopes, because
	// operators see every user.
	Users  string
	scopes uint8
}

// NewIdentity returns the identity of a caller with these scopes. Unknown scopes are ignored.
func NewIdentity(caller string, scopes ...string) *Identity {
	id := &Identity{Caller: caller}
	for _, s := range scopes {
		id.scopes |= scopeBit(s)
	}
	if id.Has(api.ScopeOperate) { // operate includes observe
		id.scopes |= scopeBit(api.ScopeObserve)
	}
	return id
}

// bind restricts the token to user ids with this prefix. It also removes operators' scopes.
func (id *Identity) bind(users string) {
	id.Users = users
	id.scopes &^= scopeBit(api.ScopeOperate) | scopeBit(api.ScopeObserve)
}

// Has reports whether the token has this scope (a constant of package api).
func (id *Identity) Has(scope string) bool {
	bit := scopeBit(scope)
	return bit != 0 && id.scopes&bit != 0
}

func scopeBit(scope string) uint8 {
	for i, s := range api.Scopes {
		if s == scope {
			return 1 << i
		}
	}
	return 0
}

// checkCaller reports whether s is a valid caller id, which is safe in keys, labels and logs. "."
// and ".." are not valid: clients remove them from paths, so no URL could name such a caller.
func checkCaller(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > notify.MaxCaller {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("._:@/|+-", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// claims are the claims of a token that notifyd reads. It ignores all other claims.
type claims struct {
	jwt.RegisteredClaims
	Scope string  `json:"scope"`
	Users *string `json:"users,omitempty"` // nil: all users
}

// UnmarshalJSON reads claims strictly: each name with its exact case, at most once, and with the
// right type. encoding/json would read a claim "Scope" as "scope", and some identity providers let
// users choose the names of additional claims.
func (c *claims) UnmarshalJSON(b []byte) error {
	type plain claims // a type without this method
	err := json.Unmarshal(b, (*plain)(c), json.WithUnmarshalers(json.UnmarshalFunc(readDate)))
	if e, ok := errors.AsType[*json.SemanticError](err); ok && e.JSONPointer != "" {
		return badClaim(request.FieldPath(e.JSONPointer), err)
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok && errors.Is(e.Err, jsontext.ErrDuplicateName) {
		return unauthorized("token_claims", "a claim of the token is given twice", err)
	}
	// An empty prefix is refused too, because it would restrict nothing.
	if err == nil && c.Users != nil && notify.CheckUserID(*c.Users) != "" {
		return badClaim("users", nil)
	}
	return err
}

// readDate reads the time in a claim. The JWT library would also accept a time in quotes, and a
// time that overflows.
func readDate(b []byte, to *jwt.NumericDate) error {
	seconds, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.Abs(seconds) > 1<<40 { // until the year 36,812
		return errors.New("the value is not a number of seconds since 1970")
	}
	*to = *jwt.NewNumericDate(time.UnixMilli(int64(seconds * 1000)))
	return nil
}

// badClaim returns an error that says which type a claim must have.
func badClaim(name string, err error) error {
	is := "a string"
	switch name {
	case "exp", "nbf", "iat":
		is = "a number of seconds since 1970"
	case "aud":
		is = "a string or a list of strings"
	case "users":
		is = "a string of 1 to 128 bytes, the prefix of the user ids that the token may use"
	case "scope":
		is = "a string of scopes, separated by spaces"
	}
	return unauthorized("token_claims", "the token's "+name+" must be "+is, err)
}
