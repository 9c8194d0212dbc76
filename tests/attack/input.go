package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// badCharacters are texts that no name may contain. On a terminal or a page they would change the
// text around the name, or make the name look like another name.
var badCharacters = map[string]string{
	"escape": "\x1b[31m", "clipboard": "\x1b]52;c;AAAA\x07", "line end": "a\nb", "carriage return": "a\rb", "zero": "a\x00b", "delete": "a\x7fb", "C1": "a\u009bb",
	"line separator": "a\u2028b", "right to left": "a\u202eb", "isolate": "a\u2066b", "mark": "a\u200fb",
	"zero-width space": "a\u200bb", "zero-width joiner": "a\u200db", "byte order mark": "\ufeffab", "soft hyphen": "a\u00adb", "word joiner": "a\u2060b", "filler": "a\u3164b", "tag": "a\U000e0061b", "selector": "a\ufe0fb",
	"not UTF-8": "a\xffb", "overlong": "a\xc0\xafb", "surrogate": "a\xed\xa0\x80b",
}

// nameTries send badCharacters wherever the API accepts a name.
func nameTries(r *world) {
	op := r.keys.token("op", "operate")
	send := r.keys.token("named", callerScopes)
	for kind, bad := range badCharacters {
		inPath := url.PathEscape(bad)
		for _, q := range []struct {
			what string
			ask  request
		}{
			{"caller", request{method: "PUT", url: "/v1/ops/callers/" + inPath, token: op, body: "{}"}},
			{"secret of a caller", request{method: "POST", url: "/v1/ops/callers/" + inPath + "/secrets", token: op, body: "{}"}},
			{"lane", request{method: "PUT", url: "/v1/ops/lanes/" + inPath, token: op, body: `{"paused":true}`}},
			{"circuit", request{method: "PUT", url: "/v1/ops/circuits/" + inPath, token: op, body: `{"to":"open"}`}},
			{"user", request{method: "PUT", url: "/v1/users/" + inPath, token: send, body: "{}"}},
			{"receiver", request{method: "POST", url: "/v1/notifications", token: send, body: `{"channel":"push","category":"alert","to":{"user_id":"` + jsonText(bad) + `"},"content":{"title":"t","body":"b"}}`}},
			{"template", request{method: "POST", url: "/v1/notifications", token: send, body: `{"channel":"push","category":"alert","to":{"user_id":"u"},"content":{"template":"` + jsonText(bad) + `"}}`}},
			{"collapse key", request{method: "POST", url: "/v1/notifications", token: send, body: `{"channel":"push","category":"alert","to":{"user_id":"u"},"content":{"title":"t","body":"b","collapse_key":"` + jsonText(bad) + `"}}`}},
			{"sender", request{method: "POST", url: "/v1/notifications", token: send, body: `{"channel":"email","category":"alert","to":{"user_id":"u"},"content":{"title":"t","body":"b","from":"` + jsonText(bad) + `"}}`}},
			{"campaign", request{method: "POST", url: "/v1/notifications:fanout", token: send, body: `{"channel":"push","category":"marketing","content":{"title":"t","body":"b"},"campaign":"` + jsonText(bad) + `","part":0,"receivers":["u"]}`}},
			{"trigger", request{url: "/v1/triggers/" + inPath, token: send}},
			{"notification", request{url: "/v1/notifications/" + inPath, token: send}},
			{"job", request{url: "/v1/ops/jobs/" + inPath, token: op}},
			{"scope of a filter", request{url: "/v1/ops/dead-letters?state=" + escape(bad), token: op}},
		} {
			r.tryRequest(q.what+" with "+kind, "uses this text as a name", q.ask, 400, 404, 422)
		}
	}
	for _, name := range []string{"<script>", "a b", "ä", strings.Repeat("x", 129), "%2e%2e", "a%2fb%00", "a%22b", "a%3Cb"} {
		r.tryRequest("caller "+name, "gives a caller a name that no token may have", request{method: "PUT", url: "/v1/ops/callers/" + name, token: op, body: "{}"}, 400, 404, 422)
	}
}

// jsonText escapes s for a JSON string. Unlike json.Marshal, it does not change bytes that are
// not UTF-8.
func jsonText(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c == 0x7f {
			fmt.Fprintf(&b, `\u%04x`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// requestTries send bad bodies and raw requests. A server and a proxy may parse some of them
// differently. Other requests cost the server much more than the client.
func requestTries(r *world) {
	const hooks = "https://hooks." + domain + "/"
	token := r.keys.token(r.mustCreateCaller(hooks), callerScopes)
	post := func(name, path, body string, header map[string]string) {
		r.tryRequest("body "+name, "sends this request", request{method: "POST", url: path, token: token, body: body, header: header}, 400, 413, 415, 422)
	}
	good := noteTo("u", "x")
	for name, body := range map[string]string{
		"empty": " ", "null": "null", "number": "1", "text": `"x"`, "list": "[]", "open": "{", "two": good + good, "rest": good + "x", "comma": `{"channel":"push",}`,
		"name twice": strings.Replace(good, `"channel"`, `"channel":"sms","channel"`, 1), "name in another case": strings.Replace(good, `"channel"`, `"Channel"`, 1),
		"unknown name": strings.Replace(good, `"channel"`, `"admin":true,"channel"`, 1), "caller": strings.Replace(good, `"channel"`, `"caller":"alice","channel"`, 1),
		"id": strings.Replace(good, `"channel"`, `"notification_id":"ntf_01KAJ8Q2T5E7V9XCB3M4N6P8RS","channel"`, 1), "status": strings.Replace(good, `"channel"`, `"status":"SENT","channel"`, 1),
		"not UTF-8": strings.Replace(good, "\"x\"", "\"\xff\"", 1), "half surrogate": strings.Replace(good, `"x"`, `"\ud800"`, 1), "UTF-16": "\xff\xfe{\x00}\x00", "byte order mark": "\ufeff" + good,
		"deep": strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), "deep variables": strings.Replace(good, `"body"`, `"variables":`+strings.Repeat(`{"a":`, 3000)+"1"+strings.Repeat("}", 3000)+`,"body"`, 1),
		"large": strings.Replace(good, `"x"`, `"`+strings.Repeat("x", 600<<10)+`"`, 1), "long text": strings.Replace(good, `"x"`, `"`+strings.Repeat("x", 17<<10)+`"`, 1),
		"many variables": strings.Replace(good, `"body"`, `"variables":{"a":"`+strings.Repeat("x", 9<<10)+`"},"body"`, 1), "NaN": strings.Replace(good, `"push"`, "NaN", 1), "comment": "/* */" + good, "single quotes": strings.ReplaceAll(good, `"`, "'"),
		"channel unknown": strings.Replace(good, "push", "fax", 1), "category unknown": strings.Replace(good, "transactional", "spam", 1), "no receiver": strings.Replace(good, `"user_id":"u"`, "", 1), "user a number": strings.Replace(good, `"u"`, "7", 1),
	} {
		post(name, "/v1/notifications", body, nil)
	}
	for name, body := range map[string]string{
		"at the year 9999": strings.TrimSuffix(good, "}") + `,"scheduled_at":"9999-01-01T00:00:00Z"}`, "no time": strings.TrimSuffix(good, "}") + `,"scheduled_at":"x"}`, "before the year 0": strings.TrimSuffix(good, "}") + `,"scheduled_at":"-0001-01-01T00:00:00Z"}`,
	} {
		post(name, "/v1/notifications", body, nil)
	}
	for name, header := range map[string]map[string]string{
		"text/plain": {"Content-Type": "text/plain"}, "form": {"Content-Type": "application/x-www-form-urlencoded"}, "XML": {"Content-Type": "text/xml"},
		"deflate": {"Content-Encoding": "deflate"}, "br": {"Content-Encoding": "br"}, "gzip twice": {"Content-Encoding": "gzip, gzip"}, "gzip that is none": {"Content-Encoding": "gzip"},
		"key with a line end": {"Idempotency-Key": "a\tb"}, "key too long": {"Idempotency-Key": strings.Repeat("x", 256)},
	} {
		post(name, "/v1/notifications", good, header)
	}
	bomb := gzipped(strings.Repeat(" ", 64<<20))
	for _, path := range []string{"/v1/notifications", "/v1/notifications:batch", "/v1/triggers"} {
		post("bomb at "+path, path, bomb, map[string]string{"Content-Encoding": "gzip"})
	}
	post("1,001 items", "/v1/notifications:batch", "["+strings.Repeat(good+",", 1000)+good+"]", nil)
	for name, body := range map[string]string{
		"payload too large": `{"callback_url":"` + hooks + `","payload":"` + strings.Repeat("x", 5000) + `","delay_seconds":1}`, "payload a number": `{"callback_url":"` + hooks + `","payload":1,"delay_seconds":1}`,
		"payload open": `{"callback_url":"` + hooks + `","payload":[,"delay_seconds":1}`, "URL of another's": `{"callback_url":"https://other.attack.test/","payload":"x","delay_seconds":1}`, "URL beside the base": `{"callback_url":"https://hooks.attack.test.evil.test/","payload":"x","delay_seconds":1}`,
		"header": `{"callback_url":"` + hooks + `","headers":{"Host":"x"},"delay_seconds":1}`, "time below 0": `{"callback_url":"` + hooks + `","delay_seconds":-1}`, "endless retries": `{"callback_url":"` + hooks + `","delay_seconds":1,"retry_schedule_seconds":[` + strings.Repeat("1,", 1000) + `1]}`,
		"line end in the URL": `{"callback_url":"` + hooks + `x
X: y","delay_seconds":1}`, "other case of the base": `{"callback_url":"https://hooks.attack.test:8443/","delay_seconds":1}`,
	} {
		post("trigger, "+name, "/v1/triggers", body, nil)
	}
	r.wireTries(token)
}

// wireTries send raw requests whose end or target can be parsed in more than one way. With such a
// request an attacker can hide a second request from a proxy (request smuggling). The server must
// refuse each request; see tryRawRequest.
func (r *world) wireTries(token string) {
	auth := "Authorization: Bearer " + token + "\r\n"
	head := "POST /v1/notifications HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + auth
	body := noteTo("u", "x")
	for name, text := range map[string]string{
		"length and chunks":     head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nZ\r\nQ",
		"chunks twice":          head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunks and identity":   head + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"chunks unknown":        head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"chunks with a tab":     head + "Transfer-Encoding:\tchunked\r\nContent-Length: 3\r\n\r\n0\r\n",
		"chunks, other name":    head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"two lengths":           head + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
		"length with a sign":    head + "Content-Length: +3\r\n\r\nabc",
		"length negative":       head + "Content-Length: -1\r\n\r\n",
		"length in hex":         head + "Content-Length: 0x3\r\n\r\nabc",
		"length too large":      head + "Content-Length: 99999999999999999999\r\n\r\n",
		"chunk size too large":  head + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n",
		"chunk size negative":   head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n",
		"chunk without its end": head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n",
		"no host":               "GET /v1/ops/callers HTTP/1.1\r\n" + auth + "\r\n",
		"two hosts":             "GET /v1/ops/callers HTTP/1.1\r\nHost: a\r\nHost: b\r\n" + auth + "\r\n",
		"host with a path":      "GET /v1/ops/callers HTTP/1.1\r\nHost: a/b\r\n" + auth + "\r\n",
		"line end alone":        "GET /v1/ops/callers HTTP/1.1\nHost: a\n" + auth + "\n",
		"header folded":         "GET /v1/users/u HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
		"header with a zero":    "GET /v1/users/u HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n" + auth + "\r\n",
		"header without colon":  "GET /v1/users/u HTTP/1.1\r\nHost: a\r\nX\r\n" + auth + "\r\n",
		"header too large":      "GET /v1/users/u HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 2<<20) + "\r\n\r\n",
		"path too long":         "GET /" + strings.Repeat("x", 2<<20) + " HTTP/1.1\r\nHost: a\r\n\r\n",
		"HTTP/2":                "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"HTTP/0.9":              "GET /v1/ops/callers\r\n",
		"HTTP/1.0 upgraded":     "GET /v1/ops/callers HTTP/1.0\r\nUpgrade: h2c\r\n\r\n",
		"HTTP/9":                "GET /v1/ops/callers HTTP/9.9\r\nHost: a\r\n\r\n",
		"upgrade to h2c":        "GET /v1/ops/callers HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
		"not HTTP":              "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"expectation":           head + "Expect: 200-maybe\r\nContent-Length: 3\r\n\r\nabc",
		"trailer":               head + "Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n0\r\nAuthorization: Bearer x\r\n\r\n",
		"body shorter":          head + fmt.Sprintf("Content-Length: %d\r\nConnection: close\r\n\r\n%s", len(body)-1, body),
	} {
		r.tryRawRequest("wire "+name, "sends this raw request", text)
	}
}

// whereTries select dead letters with expressions that cost much memory or time. The server must
// refuse each expression within 3 s. For the expression named "deep", any answer within 3 s is
// good.
//
// A server with a mutant evaluates the expressions. So they are smaller than an attacker's, and
// cannot exhaust the machine.
func whereTries(r *world) {
	token := r.keys.token("looker", "observe")
	r.must(request{method: "POST", url: "/v1/notifications", token: r.keys.token("failing", callerScopes), body: noteTo("u-nowhere", strings.Repeat("x", 200))})
	if !eventually(context.Background(), 20*time.Second, func() bool {
		a := r.must(request{url: "/v1/ops/dead-letters?where=" + escape(`.user_id == "u-nowhere"`), token: token})
		return strings.Contains(a.body, "ntf_")
	}) {
		panic(errors.New("the expression did not find the dead letter of the user u-nowhere within 20 s"))
	}
	e := `tostring|./""|tostring|./""|tostring|./""|tostring`
	for name, expr := range map[string]string{
		"differences of lists": "(" + e + `|./"") - (` + e + `|./",") | length>=0`, "sums": e + strings.Repeat(`|(. as $v|$v+$v)`, 6) + `|./""|length>0`,
		"reduce": `reduce range(18) as $i (1; [., .]) | tojson | length > 0`, "foreach": `foreach range(10) as $x (1; .)`, "repeat": `[limit(100000; repeat(1))] | length > 0`, "range": `[range(1000000)] | length > 0`,
		"definition": "def f: f; f", "text times number": `"x" * 10000000 | length > 0`, "text in text": `"\(.)\(.)" | length > 0`, "index": `[] | .[5000000] = 1 | length > 0`, "environment": `env | length > 0`, "$ENV": `$ENV | length > 0`,
		"input": "input", "debug": "debug | true", "gsub": `.user_id | gsub("";"xx") | length > 0`, "splits": `[splits("")] | length > 0`, "regular expression": `test("(x+x+)+y{1000}{1000}")`, "computed test": `test(.user_id)`,
		"list of all": "[., .] | length > 0", "object of all": "{a: ., b: .} | length > 0", "module": `import "x" as x; true`, "include": `include "x"; true`, "halt": "halt_error", "path": `[paths] | length > 0`,
		"recursion": `[recurse(.; true)] | length > 0`, "walk": "walk(.) | true", "assignment": `.code |= "x" | true`, "format": "@base64 | true", "error": "error", "label": "label $x | break $x", "getpath": `getpath(["a"]) | true`,
		"too long": strings.Repeat("(", 5000), "deep": strings.Repeat("(", 1500) + "1" + strings.Repeat(")", 1500), "input_filename": "input_filename | true", "$__prog_args": "$__prog_args | true", "fromjson of much": `.extra | tojson | fromjson | true`, "@sh": "@sh",
	} {
		r.try(name, "selects dead letters with this expression", "an answer of 4xx within 3 s", func(ctx context.Context) string {
			began := time.Now()
			a, err := r.asked(request{url: "/v1/ops/dead-letters?where=" + escape(expr), token: token})
			took := time.Since(began)
			switch {
			case took > 3*time.Second:
				// The server may still evaluate the expression. Restart it, so that the next try
				// finds an idle server.
				r.restart(ctx, "serve")
				return fmt.Sprintf("the request took %s (error: %v)", took, err)
			case err != nil:
				panic(err)
			case a.status/100 != 4 && name != "deep":
				return a.String()
			}
			return ""
		})
	}
}

// labelTries send values that a careless server would use as labels of metrics. Then each new value
// would stay in its memory for ever.
func labelTries(r *world) {
	for name, text := range map[string]string{
		"method": "ATTACKMETHOD%d /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "path": "GET /attackpath%d HTTP/1.1\r\nHost: x\r\n\r\n", "host": "GET /healthz HTTP/1.1\r\nHost: attackhost%d\r\n\r\n",
		"provider": "POST /v1/receipts/attackprovider%d HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "user agent": "GET /healthz HTTP/1.1\r\nHost: x\r\nUser-Agent: attackagent%d\r\n\r\n",
	} {
		r.try(name, "makes 200 requests, each with another value", "that /metrics contains none of the values", func(context.Context) string {
			for i := range 200 {
				rig.Must(raw(apiAddr, fmt.Sprintf(text, i)))
			}
			a := r.must(request{url: "http://127.0.0.1:" + adminPort + "/metrics"})
			if at := strings.Index(strings.ToLower(a.body), "attack"); at >= 0 {
				return "/metrics contains " + a.body[max(0, at-60):at+40]
			}
			return ""
		})
	}
}
