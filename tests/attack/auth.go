package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// tryBadToken adds a try that sends a token to a server. The server must refuse the token.
func (r *world) tryBadToken(server, name, does, token string) {
	r.tryRequest(name, does, request{url: "http://" + server + "/v1/ops/callers", token: token}, 401, 403)
}

// mustAcceptToken panics if the server does not accept a valid token. If the server accepted no
// token at all, every other try would count as refused.
func (r *world) mustAcceptToken(server, token string) {
	r.must(request{url: "http://" + server + "/v1/ops/callers", token: token})
}

// tokenTries send forged tokens to the first server, which trusts one ES256 key.
func tokenTries(r *world) {
	r.mustAcceptToken(apiAddr, r.keys.token("op", "operate"))
	k, good := r.keys, claimsOf("op", "operate")
	add := func(name, does, token string) { r.tryBadToken(apiAddr, name, does, token) }
	own := func(more map[string]any, body any) string { return k.signToken("ES256", k.own, more, body) }
	add("none", "has no token", "")
	for _, alg := range []string{"none", "None", "NONE", "nOnE", "", "HS256", "HS384", "HS512", "RS256", "RS512", "PS256", "ES384", "ES512", "EdDSA", "ES256K", "es256"} {
		add("alg "+alg+" unsigned", "has no signature", k.signToken(alg, nil, nil, good))
		add("alg "+alg+" of own key", "is signed with the right key, but names another algorithm", k.signToken(alg, k.own, nil, good))
		add("alg "+alg+" by public key", "is signed with the public key as a secret", k.signToken(alg, k.ownPEM, nil, good))
	}
	add("alg ES256 unsigned", "has no signature", k.signToken("ES256", nil, nil, good))
	add("other key", "is signed by another key", k.signToken("ES256", k.other, nil, good))
	add("rsa", "is signed by an RSA key", k.signToken("RS256", k.rsa, nil, good))
	add("ed25519", "is signed by an Ed25519 key", k.signToken("EdDSA", k.ed, nil, good))
	for _, alg := range []any{nil, 7, true, []string{"ES256"}, map[string]string{"a": "ES256"}} {
		add(fmt.Sprintf("alg of type %T", alg), "names no algorithm", own(map[string]any{"alg": alg}, good))
	}
	for name, more := range map[string]map[string]any{
		"crit": {"crit": []string{"exp"}}, "crit unknown": {"crit": []string{"x"}, "x": 1}, "typ": {"typ": "JOSE"}, "typ number": {"typ": 1}, "b64": {"b64": false, "crit": []string{"b64"}},
		"jwe": {"enc": "A256GCM", "typ": "JWE"},
	} {
		add("header "+name, "has a header that is not understood", own(more, good))
	}
	for _, name := range []string{"jku", "x5u", "jwk", "x5c"} {
		value := any("https://" + domain + "/jwks")
		if name == "jwk" {
			value = map[string]any{"kty": "oct", "k": b64(k.sym)}
		}
		add("key of its own by "+name, "brings or names its own key", k.signToken("ES256", k.other, map[string]any{name: value}, good))
	}
	r.claimTries(good)
	r.changedTries(good)
}

// claimTries send tokens that are signed by the right key but have wrong claims.
func (r *world) claimTries(good map[string]any) {
	add := func(name, does string, body any) {
		r.tryBadToken(apiAddr, name, does, r.keys.signToken("ES256", r.keys.own, nil, body))
	}
	now := time.Now().Unix()
	for name, values := range map[string][]any{
		"exp": {nil, now - 60, now + 40*24*3600, 0, -1, fmt.Sprint(now + 3600), 1e300, "x", true, []int64{now + 3600}},
		"nbf": {now + 3600, "x", 1e300},
		"iat": {now + 3600, "x"},
		"iss": {nil, "", "other", "notifyd ", "NOTIFYD", []string{"notifyd"}, 1},
		"aud": {nil, "", "other", "NOTIFYD", "notifyd ", []string{}, []string{"other"}, []any{1}, map[string]any{"notifyd": 1}},
		"sub": {nil, "", " ", "a b", "a\x00", "\x1b[31m", "a\r\nb", "<script>", "x\u202ey", "x\u200b", strings.Repeat("x", 129), 7, []string{"op"}, "ä"},
		"scope": {
			nil, "", "OPERATE", "operate,read", "operate\tread", "x\u00a0operate", "x\u2003operate", "x\u0085operate", "x\noperate", "operate\u200b",
			"\u200boperate", "operat", "operate2", []string{"operate"}, 7, map[string]any{"operate": true},
		},
		"users": {"", 7, []string{"op"}, "x:", "\x00"},
	} {
		for _, v := range values {
			add(fmt.Sprintf("%s=%#v", name, v), "has a wrong value for a claim, or no value", withChanges(good, map[string]any{name: v}))
		}
	}
	text := func(more string) string {
		return fmt.Sprintf(`{"iss":"notifyd","aud":"notifyd","sub":"op","iat":%d,"exp":%d%s}`, now, now+3600, more)
	}
	for name, body := range map[string]string{
		"Scope in another case":  text(`,"Scope":"operate"`),
		"SCOPE in another case":  text(`,"SCOPE":"operate"`),
		"scope twice":            text(`,"scope":"read","scope":"operate"`),
		"scope under scp":        text(`,"scp":"operate"`),
		"scopes":                 text(`,"scopes":["operate"]`),
		"sub twice":              text(`,"sub":"other","scope":"operate"`),
		"exp twice":              text(fmt.Sprintf(`,"scope":"operate","exp":%d`, now+7200)),
		"text behind the claims": text(`,"scope":"operate"`) + "{}",
		"a list":                 "[" + text(`,"scope":"operate"`) + "]",
		"null":                   "null", "nothing": "", "a number": "1", "not JSON": "{", "not UTF-8": text(",\"x\":\"\xff\",\"scope\":\"operate\""),
		"deep": text(`,"scope":"operate","x":` + strings.Repeat("[", 3000) + strings.Repeat("]", 3000)),
	} {
		if name == "deep" { // the claims are valid, but the token is longer than allowed
			body = text(`,"scope":"operate","x":"` + strings.Repeat("x", 8<<10) + `"`)
		}
		add("claims: "+name, "has claims that can be read in two ways, or not at all", body)
	}
}

// changedTries send changed copies of a valid token.
func (r *world) changedTries(good map[string]any) {
	add := func(name, does string, change func(parts []string) string) {
		r.tryBadToken(apiAddr, name, does, change(strings.Split(r.keys.signToken("ES256", r.keys.own, nil, good), ".")))
	}
	join := func(p ...string) string { return strings.Join(p, ".") }
	for i := range 3 {
		for _, at := range []int{0, 7, 20} {
			add(fmt.Sprintf("part %d, byte %d", i, at), "has one character changed", func(p []string) string {
				b := []byte(p[i])
				if b[at] != 'A' {
					b[at] = 'A'
				} else {
					b[at] = 'B'
				}
				p[i] = string(b)
				return join(p...)
			})
		}
		add(fmt.Sprintf("part %d empty", i), "has an empty part", func(p []string) string { p[i] = ""; return join(p...) })
		add(fmt.Sprintf("part %d padded", i), "is padded", func(p []string) string { p[i] += "="; return join(p...) })
		add(fmt.Sprintf("part %d longer", i), "has more characters", func(p []string) string { p[i] += "AAAA"; return join(p...) })
		add(fmt.Sprintf("part %d shorter", i), "has fewer characters", func(p []string) string { p[i] = p[i][:len(p[i])-4]; return join(p...) })
		add(fmt.Sprintf("part %d with a space", i), "has a space in it", func(p []string) string { p[i] = p[i][:4] + " " + p[i][4:]; return join(p...) })
	}
	add("one part", "has only one part", func(p []string) string { return p[1] })
	add("two parts", "has two parts", func(p []string) string { return join(p[:2]...) })
	add("four parts", "has four parts", func(p []string) string { return join(append(p, p[2])...) })
	add("five parts", "looks like a JWE", func(p []string) string { return join(append(p, p[2], p[2])...) })
	add("other claims", "has the signature of another token", func(p []string) string {
		return join(p[0], b64([]byte(`{"iss":"notifyd","aud":"notifyd","sub":"x","scope":"operate","exp":4102444800}`)), p[2])
	})
	add("zeros", "has a signature of zeros", func(p []string) string { return join(p[0], p[1], b64(make([]byte, 64))) })
	add("DER", "has a signature of another form", func(p []string) string { return join(p[0], p[1], b64([]byte("0\x06\x02\x01\x01\x02\x01\x01"))) })
	add("URL-escaped", "is escaped", func(p []string) string { return p[0] + "%2e" + p[1] + "%2e" + p[2] })
}

// jwksTries send tokens to the second server. Its key set contains keys that must not sign
// tokens.
func jwksTries(r *world) {
	good := claimsOf("op", "operate")
	r.mustAcceptToken(jwksAddr, r.keys.signToken("ES256", r.keys.own, map[string]any{"kid": "good"}, good))
	r.mustAcceptToken(jwksAddr, r.keys.signToken("RS256", r.keys.rsa, map[string]any{"kid": "rsa"}, good))
	k := r.keys
	add := func(name, does, alg string, kid, key any) {
		r.tryBadToken(jwksAddr, name, does, k.signToken(alg, key, map[string]any{"kid": kid}, good))
	}
	for _, kid := range []any{nil, "", "none", "Good", "good ", "../good", "good\x00", 7, []string{"good"}, strings.Repeat("x", 300), "' or 1=1", "/dev/null", "https://" + domain} {
		add(fmt.Sprintf("kid %#v", kid), "names no key of the set", "ES256", kid, k.own)
	}
	for _, kid := range []string{"enc", "ops", "wrong-alg", "private", ""} {
		add("key "+kid, "is signed by a key of the set that must not sign", "ES256", kid, k.other)
	}
	add("symmetric key", "is signed by a secret that is in the key set", "HS256", "oct", k.sym)
	add("symmetric of own kid", "is signed by a secret under another key's name", "HS256", "good", k.sym)
	add("weak RSA", "is signed by an RSA key of 1,024 bits", "RS256", "weak", k.weak)
	add("P-384", "is signed by a key of another curve", "ES384", "p384", k.p384)
	add("P-384 as ES256", "is signed by a key of another curve", "ES256", "p384", k.p384)
	add("EdDSA key as ES256", "names another algorithm than its key has", "ES256", "ed", k.own)
	add("key of another kid", "is signed by a key under another's name", "ES256", "rsa", k.own)
	add("RSA under the EC key", "is signed by a key under another's name", "RS256", "good", k.rsa)
	add("unsigned", "has no signature", "none", "good", nil)
}

// headerTries try to avoid the check of the token. They send the token in other places, or spell
// the path in other ways. Each try is a raw request, because a client library would normalise
// the path.
func headerTries(r *world) {
	token := r.keys.token("op", "operate")
	read := r.keys.token("op", "read")
	const path = "/v1/ops/callers"
	for name, header := range map[string][]string{
		"Basic": {"Authorization: Basic " + token}, "token alone": {"Authorization: " + token}, "Bearer without": {"Authorization: Bearer"}, "Bearer blank": {"Authorization: Bearer  "},
		"twice": {"Authorization: Bearer " + read, "Authorization: Bearer " + token}, "twice, other order": {"Authorization: Bearer " + token, "Authorization: Bearer " + read},
		"list": {"Authorization: Bearer " + read + ", Bearer " + token}, "tab": {"Authorization: Bearer\t" + token}, "colon": {"Authorization: Bearer: " + token},
		"cookie": {"Cookie: token=" + token + "; Authorization=Bearer " + token}, "proxy": {"Proxy-Authorization: Bearer " + token}, "own header": {"X-Authorization: Bearer " + token, "X-Auth-Token: " + token},
		"forwarded": {"X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1", "Forwarded: for=127.0.0.1", "X-Forwarded-User: op", "X-Remote-User: op", "X-Forwarded-Host: 127.0.0.1"},
		"rewritten": {"X-Original-URL: /v1/ops/callers", "X-Rewrite-URL: /v1/ops/callers"}, "other method": {"X-HTTP-Method-Override: OPTIONS", "X-Method-Override: HEAD"},
		"session": {"Cookie: session=x; notifyd_session=x; __Host-session=x"}, "quoted": {`Authorization: Bearer "` + token + `"`},
		"name with a space": {"Authorization : Bearer " + token}, "underscore": {"Authorization_: Bearer " + token},
	} {
		r.tryRawRequest("token by "+name, "brings the token in another way", get(path, header...))
	}
	for _, p := range []string{
		path + "?access_token=" + token, path + "?token=" + token, path + ";token=" + token, path + "/", "/" + path, "/v1//ops/callers", "/v1/./ops/callers", "/v1/x/../ops/callers", "/healthz/../v1/ops/callers",
		"/ui/../v1/ops/callers", "/ui/..%2fv1/ops/callers", "/v1/receipts/../ops/callers", "/v1/receipts/%2e%2e/ops/callers", "/v1/%6fps/callers", "/v1/ops%2fcallers", "/v1/ops/callers%00", "/v1/ops/callers%20",
		"/V1/OPS/CALLERS", "/v1/ops/callers.json", "/v1/ops/callers;x", "/v1/ops/callers#", "\\v1\\ops\\callers", "/v1\\ops\\callers", "/%2fv1/ops/callers", "/v1/ops/%63allers", "/v1/ops/callers/../callers",
		"/openapi.yaml/../v1/ops/callers", "/.//v1/ops/callers", "/..;/v1/ops/callers", "/v1/ops/callers/..;/callers", "/metrics", "/debug/pprof/", "/debug/vars", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
		"/ui/assets/..%2f..%2f..%2fetc%2fpasswd", "/ui/assets/../../etc/passwd", "/ui/assets/%2e%2e", "/.git/config", "/v1/ops/debug", "http://127.0.0.1:7420/v1/ops/callers", "http://x/v1/ops/callers", "//127.0.0.1/v1/ops/callers",
		"http://169.254.169.254/", "127.0.0.1:22", "*",
	} {
		r.tryRawRequest("path "+p, "writes the path in another way, without a token", get(p))
	}
	for _, m := range []string{"HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get", "G ET", "X"} {
		r.tryRawRequest("method "+m, "asks with another method, without a token", strings.Replace(get(path), "GET", m, 1))
	}
}

// lastTries run after all other tries. They check the connections that the canary recorded, and the
// logs, metrics and files of the servers.
func lastTries(r *world) {
	r.try("canary", "looks at all connections that the canary has recorded", "that no connection is to an address that is not public", func(context.Context) string {
		if saw := r.canary.firstSeen(noAddr); saw != "" {
			return "a connection to " + saw
		}
		return ""
	})
	r.fileTries()
	r.storedTry()
}
