package main

import (
	"maps"
	"slices"

	"github.com/notifyd/notifyd/tests/internal/victim"
)

// mutants each break one mechanism. The group that By names must notice.
var mutants = map[string]victim.Mutant{
	// Callbacks connect to whatever address a name has.
	"any-address": {
		File: "pkg/trigger/policy.go",
		Old:  "if err := p.library.SafeAddr(ip); err != nil {",
		New:  "if err := p.library.SafeAddr(ip); err != nil && ip.IsMulticast() {",
		By:   "address",
	},
	// The signature of a token is not looked at.
	"any-signature": {
		File: "pkg/server/auth.go",
		Old:  "\tcase err != nil:\n\t\treturn nil, time.Time{}, translateJWT(err)",
		New:  "\tcase err != nil && !errors.Is(err, jwt.ErrTokenSignatureInvalid):\n\t\treturn nil, time.Time{}, translateJWT(err)",
		By:   "token",
	},
	// A token for anything may do everything.
	"any-scope": {
		File: "pkg/server/handle.go",
		Old:  "if !x.may() {",
		New:  "if !x.may() && x.id == nil {",
		By:   "scope",
	},
	// A trigger is found whoever asks for it.
	"any-owner": {
		File: "pkg/server/triggers.go",
		Old:  "\tif x.operator() {\n\t\treturn x.srv.deps.Triggers.Find",
		New:  "\tif x.id != nil {\n\t\treturn x.srv.deps.Triggers.Find",
		By:   "owner",
	},
	// A token that is bound to some users reads all of them.
	"any-user": {
		File: "pkg/server/users.go",
		Old:  "if !strings.HasPrefix(id, x.id.Users) {",
		New:  "if !strings.HasPrefix(id, x.id.Users) && id == \"\" {",
		By:   "namespace",
	},
	// What an expression may do is not bounded.
	"any-where": {
		File: "pkg/ops/where.go",
		Old:  "if not := (selection{}).query(q); not != \"\" {",
		New:  "if not := (selection{}).query(q); not == \"*\" {",
		By:   "where",
	},
	// A client chooses the labels of metrics.
	"any-method": {
		File: "pkg/server/handle.go",
		Old:  "\treturn \"other\"\n",
		New:  "\treturn method\n",
		By:   "label",
	},
	// The port of the log takes every request.
	"any-request": {
		File: "pkg/engine/kfake/reader.go",
		Old:  "if !slices.Contains(readable, kmsg.Key(a.key)) {",
		New:  "if a.key < 0 && !slices.Contains(readable, kmsg.Key(a.key)) {",
		By:   "kafka",
	},
	// Callers' signing secrets are stored in clear.
	"in-clear": {
		File: "pkg/prefs/sealed.go",
		Old:  "if one := &c.Secrets[i]; s.keys != nil && !one.Sealed() {",
		New:  "if one := &c.Secrets[i]; s.keys == nil && !one.Sealed() {",
		By:   "left",
	},
	// An answer of 101 is read to its end.
	"endless-101": {
		File: "pkg/trigger/call.go",
		Old:  "if resp.Body != http.NoBody && resp.StatusCode >= http.StatusOK {",
		New:  "if resp.Body != http.NoBody {",
		By:   "receiver",
	},
}

func mutantNames() []string { return slices.Sorted(maps.Keys(mutants)) }
