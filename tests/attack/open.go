package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	return b.String()
}

var formToken = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

// pageTries send requests to the operator page: without a session, with a session but without the
// form token of that session, and with a session that may only read.
func pageTries(r *world) {
	form := map[string]string{"Content-Type": "application/x-www-form-urlencoded"}
	a := r.must(request{url: "/ui/sign-in"})
	found := formToken.FindStringSubmatch(a.body)
	if found == nil {
		panic(errors.New("the sign-in form has no CSRF token"))
	}
	csrf := "&csrf=" + escape(found[1])
	opened, _, _ := strings.Cut(a.header.Get("Set-Cookie"), ";")
	inForm := joined(form, map[string]string{"Cookie": opened})
	signIn := func(scope string) (cookie string) {
		a := r.ask(request{method: "POST", url: "/ui/sign-in", body: "token=" + escape(r.keys.token("page", scope)) + csrf, header: inForm})
		if a.status != http.StatusSeeOther {
			panic(fmt.Errorf("the sign-in with a valid token failed: the page %s", a))
		}
		for _, c := range a.header.Values("Set-Cookie") {
			name, value, _ := strings.Cut(strings.SplitN(c, ";", 2)[0], "=")
			if !strings.Contains(c, "HttpOnly") || !strings.Contains(c, "SameSite=Strict") {
				panic(fmt.Errorf("the cookie %s must be HttpOnly and SameSite=Strict, but the header is %s", name, c))
			}
			cookie += name + "=" + value + "; "
		}
		return cookie
	}
	session := signIn("operate")
	looks := signIn("observe")
	pages := []string{"", "failures", "circuits", "dead-letters", "plan", "jobs", "jobs/x", "suppressions", "forecast", "audit", "find", "id/x", "users/x"}
	for _, p := range pages {
		r.tryRequest("look at "+p, "looks without a session", request{url: "/ui/" + p}, 303)
		r.tryRequest("look at "+p+" with a session of its own", "makes up a session", request{url: "/ui/" + p, header: map[string]string{"Cookie": "session=AAAAAAAAAAAAAAAAAAAAAAAAAA; __Host-session=AAAAAAAAAAAAAAAAAAAAAAAAAA"}}, 303)
	}
	for _, p := range []string{"circuits", "suppressions", "jobs", "jobs/x"} {
		body := "name=provider:apns&to=open&action=cancel&reason=x&csrf="
		r.tryRequest("change "+p, "changes without a session", request{method: "POST", url: "/ui/" + p, body: body, header: form}, 303, 403)
		for name, h := range map[string]map[string]string{
			"": {}, " from another site": {"Origin": "https://evil.test", "Sec-Fetch-Site": "cross-site"}, " from another origin": {"Origin": "http://evil.test"}, " from a sandbox": {"Origin": "null"}, " from a sister": {"Sec-Fetch-Site": "same-site"},
		} {
			header := joined(form, h, map[string]string{"Cookie": session})
			r.tryRequest("change "+p+" without its form token"+name, "sends a form without the form token of its session", request{method: "POST", url: "/ui/" + p, body: body, header: header}, 403)
			r.tryRequest("change "+p+" with another form token"+name, "sends a form without the form token of its session", request{method: "POST", url: "/ui/" + p, body: body + "AAAAAAAAAAAAAAAAAAAAAA", header: header}, 403)
		}
		r.tryRequest("change "+p+" by who looks", "changes with a session that only looks", request{method: "POST", url: "/ui/" + p, body: body, header: joined(form, map[string]string{"Cookie": looks})}, 403)
	}
	for _, token := range []string{"", "x", r.keys.token("page", "send read"), r.keys.signToken("none", nil, nil, claimsOf("page", "operate")), r.keys.signToken("ES256", r.keys.other, nil, claimsOf("page", "operate"))} {
		r.tryRequest("sign in by "+strconv.Itoa(len(token))+" bytes", "signs in with a token that does not open the page", request{method: "POST", url: "/ui/sign-in", body: "token=" + escape(token) + csrf, header: inForm}, 400, 401, 403, 422)
	}
	r.tryRequest("sign in from elsewhere", "signs in with a form of another page, without the CSRF token", request{method: "POST", url: "/ui/sign-in", body: "token=" + escape(r.keys.token("page", "operate")), header: form}, 403)
	good := escape(r.keys.token("page", "observe"))
	for _, next := range []string{"//evil.test/", "https://evil.test/", "/\\evil.test/", "\\\\evil.test", "/ui/../../evil", "javascript:alert(1)", "/ui/\r\nX: y", "http:evil.test", "/v1/ops/callers", "///evil.test", "/%2f/evil.test", " //evil.test"} {
		r.try("go on at "+strconv.Quote(next), "signs in with this next page", "a redirect within the operator page", func(context.Context) string {
			a := r.ask(request{method: "POST", url: "/ui/sign-in", body: "token=" + good + csrf + "&next=" + escape(next), header: inForm})
			if to := a.header.Get("Location"); a.status/100 == 3 && !strings.HasPrefix(to, "/ui/") || a.header.Get("X") != "" || strings.Contains(a.header.Get("Location"), "..") {
				return "redirected to " + to
			}
			return ""
		})
	}
	for _, text := range []string{"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "{{.}}", "'-alert(1)-'", "javascript:alert(1)"} {
		for _, p := range []string{"find?q=", "id/", "users/", "dead-letters?code=", "dead-letters?where=", "jobs/", "sign-in?next=", "plan?where="} {
			r.try("page "+p+text, "sends a script in a value that the page shows", "that the page escapes the script", func(context.Context) string {
				a := r.ask(request{url: "/ui/" + p + strings.ReplaceAll(escape(text), "+", "%20"), header: map[string]string{"Cookie": session}})
				if strings.Contains(a.body, "<script>alert") || strings.Contains(a.body, "<img src=x") || strings.Contains(a.body, `href="javascript:`) {
					return a.String()
				}
				if a.status == 200 && !strings.Contains(a.header.Get("Content-Security-Policy"), "script-src") && !strings.Contains(a.header.Get("Content-Security-Policy"), "default-src 'none'") {
					return "a page without a policy: " + a.header.Get("Content-Security-Policy")
				}
				return ""
			})
		}
	}
}

// joined returns one map with the headers of all maps. A later map overwrites an earlier one.
func joined(maps ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range maps {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

// receiptTries send events that a provider did not sign, or that it signed at another time.
func receiptTries(r *world) {
	const path = "/v1/receipts/sendgrid"
	events := `[{"event":"bounce","email":"ann@shop.example","timestamp":1,"ref":"x"}]`
	sent := func(at, body string, key *ecdsa.PrivateKey) request {
		sum := sha256.Sum256([]byte(at + body))
		sig := rig.Must(ecdsa.SignASN1(rand.Reader, key, sum[:]))
		return request{method: "POST", url: "http://" + jwksAddr + path, body: events, header: map[string]string{
			"X-Twilio-Email-Event-Webhook-Timestamp": at, "X-Twilio-Email-Event-Webhook-Signature": base64.StdEncoding.EncodeToString(sig)}}
	}
	now := time.Now()
	for name, at := range map[string]string{
		"0": "0", "none": "", "text": "abc", "an hour ago": fmt.Sprint(now.Add(-time.Hour).Unix()), "in an hour": fmt.Sprint(now.Add(time.Hour).Unix()), "with a sign": "+" + fmt.Sprint(now.Unix()) + " ", "hex": "0x1", "too large": strings.Repeat("9", 30),
	} {
		r.tryRequest("sendgrid signed at "+name, "sends a signed event with another time", sent(at, events, r.keys.events), 400, 401, 403, 422)
	}
	r.tryRequest("sendgrid by another key", "signs an event with another key", sent(fmt.Sprint(now.Unix()), events, r.keys.other), 401, 403)
	r.tryRequest("sendgrid with another body", "sends another body than was signed", sent(fmt.Sprint(now.Unix()), "[]", r.keys.events), 401, 403)
	for _, header := range []map[string]string{
		nil, {"X-Twilio-Signature": ""}, {"X-Twilio-Signature": "AAAA"}, {"X-Twilio-Email-Event-Webhook-Signature": "AAAA"}, {"X-Twilio-Email-Event-Webhook-Signature": "MAYCAQECAQE=", "X-Twilio-Email-Event-Webhook-Timestamp": fmt.Sprint(now.Unix())},
	} {
		for _, to := range []string{jwksAddr + path, jwksAddr + "/v1/receipts/twilio", apiAddr + path, apiAddr + "/v1/receipts/twilio", apiAddr + "/v1/receipts/apns", apiAddr + "/v1/receipts/%2e%2e"} {
			r.tryRequest(fmt.Sprintf("%s with %v", to, header), "sends an event without a valid signature", request{method: "POST", url: "http://" + to, body: events, header: header}, 400, 401, 403, 404, 415, 422, 503)
		}
	}
}

// listenerTries send requests to the listeners that need no token. Some requests have the Host
// header of a web page whose name resolves to this machine (DNS rebinding). Other requests use an
// address that other machines can reach.
func listenerTries(r *world) {
	admin := "http://127.0.0.1:" + adminPort
	for _, host := range []string{"evil.test", "evil.test:7421", "localhost.evil.test", "127.0.0.1.evil.test", "0.0.0.0", "[::]", "10.0.0.1", "localhost:x.evil.test", "2130706433", "LOCALHOST.", "127.1"} {
		for _, q := range []struct{ method, url string }{
			{"GET", admin + "/metrics"}, {"GET", admin + "/debug/pprof/"}, {"GET", admin + "/debug/pprof/cmdline"}, {"GET", admin + "/debug/pprof/heap"},
			{"GET", "http://" + simsAddr + "/inbox.json"}, {"GET", "http://" + simsAddr + "/credentials.json"}, {"GET", "http://" + simsAddr + "/ledger/totals"}, {"DELETE", "http://" + simsAddr + "/ledger"}, {"POST", "http://" + simsAddr + "/control/rules"},
		} {
			r.tryRequest(q.method+" "+q.url+" as "+host, "asks with another Host", request{method: q.method, url: q.url, header: map[string]string{"Host": host, "Origin": "http://" + host}}, 400, 403, 421, 422)
		}
	}
	for _, p := range []string{"", "cmdline", "profile", "symbol", "trace", "heap", "goroutine?debug=2", "allocs"} {
		r.tryRequest("pprof/"+p+" from another machine", "sends a request to the admin listener at an address that other machines can reach", request{url: "http://10.9.9.9:" + adminPort + "/debug/pprof/" + p}, 403)
	}
	for _, s := range []string{"99999", "91", "0", "-1", "NaN", "Inf", "1e9", "x"} {
		for _, p := range []string{"profile", "trace"} {
			r.tryRequest("pprof/"+p+" for "+s+" s", "asks for a profile of this length", request{url: admin + "/debug/pprof/" + p + "?seconds=" + s}, 400)
		}
	}
	for _, a := range []string{apiAddr, jwksAddr, kafkaAddr, simsAddr} {
		_, port := rig.Must2(net.SplitHostPort(a))
		r.try("port "+port+" from another machine", "connects to an address that other machines can reach", "that nothing listens there", func(ctx context.Context) string {
			if canConnect(ctx, "10.9.9.9:"+port) == nil {
				return "a connection"
			}
			return ""
		})
	}
}
