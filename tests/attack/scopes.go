package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

//go:embed testdata/routes.txt
var routeTable string

var parameter = regexp.MustCompile(`\{[a-z]+\}`)

// scopeTries request every route without a scope that opens it: with each single wrong scope, with
// all wrong scopes together, with no scope, and without a token.
func scopeTries(r *world) {
	lines := rows(routeTable)
	var known []string
	scopes := []string{"send", "trigger", "read", "users", "observe", "operate"}
	for _, line := range lines {
		f := strings.Fields(line)
		method, path, opens := f[0], f[1], f[2:]
		known = append(known, method+" "+path)
		id := "x"
		switch {
		case strings.HasPrefix(path, "/v1/notifications/"):
			id = "ntf_01KAJ8Q2T5E7V9XCB3M4N6P8RS"
		case strings.HasPrefix(path, "/v1/triggers/"):
			id = "trg_01KAJ8Q2T5E7V9XCB3M4N6P8RS"
		case strings.HasPrefix(path, "/v1/campaigns/"):
			id = "cmp_01KAJ8Q2T5E7V9XCB3M4N6P8RS"
		}
		at := parameter.ReplaceAllString(path, id)
		var closed []string
		for _, s := range scopes {
			if !slices.Contains(opens, s) {
				closed = append(closed, s)
			}
		}
		for _, s := range append(closed, strings.Join(closed, " "), "") {
			if len(closed) == 1 && s == closed[0] && slices.ContainsFunc(r.tries, func(t try) bool { return t.name == method+" "+path+" by "+s }) {
				continue
			}
			r.tryRequest(fmt.Sprintf("%s %s by %s", method, path, s), "asks with other scopes than the route needs", request{method: method, url: at, token: r.keys.token("scoped", s), body: bodyOf(method)}, 403)
		}
		r.tryRequest(fmt.Sprintf("%s %s without", method, path), "asks without a token", request{method: method, url: at, body: bodyOf(method)}, 401)
		// A token can be bound to a namespace of users. Routes of operators show the data of all
		// users, so they must refuse such a token. Other routes may accept it.
		if opens[0] != "observe" && opens[0] != "operate" {
			continue
		}
		token := r.keys.signToken("ES256", r.keys.own, nil, withChanges(claimsOf("scoped", strings.Join(scopes, " ")), map[string]any{"users": "shop:"}))
		r.tryRequest(fmt.Sprintf("%s %s of a namespace", method, path), "asks with all scopes and a token of a namespace", request{method: method, url: at, token: token, body: bodyOf(method)}, 403)
	}
	a := r.must(request{url: "/openapi.yaml"})
	if lacks := missing(a.body, known); len(lacks) > 0 {
		panic(fmt.Errorf("testdata/routes.txt has no line for these routes of /openapi.yaml: %q", lacks))
	}
}

func bodyOf(method string) string {
	if method == "GET" || method == "DELETE" {
		return ""
	}
	return "{}"
}

// missing returns the routes that need a token according to an OpenAPI document, but that are not
// in the list of known routes (listed).
func missing(document string, listed []string) (lacks []string) {
	open := []string{"POST /v1/receipts/{provider}", "GET /openapi.yaml", "GET /healthz", "GET /readyz"}
	path := ""
	for line := range strings.Lines(document) {
		line = strings.TrimRight(line, "\n")
		if p, ok := strings.CutPrefix(line, "  /"); ok {
			path = "/" + strings.TrimSuffix(p, ":")
			continue
		}
		m, ok := strings.CutPrefix(line, "    ")
		m, isKey := strings.CutSuffix(m, ":")
		if !ok || !isKey || path == "" || !slices.Contains([]string{"get", "put", "post", "delete", "patch"}, m) {
			continue
		}
		if name := strings.ToUpper(m) + " " + path; !slices.Contains(listed, name) && !slices.Contains(open, name) {
			lacks = append(lacks, name)
		}
	}
	return lacks
}
