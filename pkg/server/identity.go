package server

import (
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Identity is who a verified token speaks for.
type Identity struct {
	Caller string // the token's sub
	// Users is what ids of users begin with that the token may read, write and send to
	// (claim users); empty: all. A token that is bound so has no scope of operators,
	// who see every user.
	Users  string
	scopes uint8
}

// NewIdentity returns the identity of a caller with these scopes; unknown ones
// mean nothing.
func NewIdentity(caller string, scopes ...string) *Identity {
	id := &Identity{Caller: caller}
	for _, s := range scopes {
		id.scopes |= scopeBit(s)
	}
	if id.Has(api.ScopeOperate) { // who may change things may look at them
		id.scopes |= scopeBit(api.ScopeObserve)
	}
	return id
}

// bind leaves the token the users whose ids begin so.
func (id *Identity) bind(users string) {
	id.Users = users
	id.scopes &^= scopeBit(api.ScopeOperate) | scopeBit(api.ScopeObserve)
}

// Has reports whether the token carries a scope of package api.
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

// checkCaller holds a caller's name to what can stand in keys, labels and logs. Clients
// take "." and ".." out of a path, so no URL could name such a caller.
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
