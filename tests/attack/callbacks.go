package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

//go:embed testdata/urls.txt
var urlTable string

//go:embed testdata/addresses.txt
var addressTable string

// rows returns the lines of a table in the folder testdata, without comments and empty lines. If a
// line begins with a quote, rows unquotes it as a Go string.
func rows(table string) (out []string) {
	for line := range strings.Lines(table) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if line[0] == '"' {
			line = rig.Must(strconv.Unquote(line))
		}
		out = append(out, line)
	}
	return out
}

func addrOf(s string) netip.Addr { return netip.MustParseAddr(s) }

// urlTries use URLs that notifyd must never call, in many spellings. Each URL is checked with the
// API, used as the base URL of a trigger, and used as the outcomes URL. In the table, the mark ~
// before a URL means that notifyd can refuse the URL only after a DNS look-up, so that URL is not
// used as the outcomes URL.
func urlTries(r *world) {
	urls := rows(urlTable)
	for _, u := range urls {
		u, isName := strings.CutPrefix(u, "~")
		quoted := strconv.QuoteToASCII(u)
		r.try("check "+quoted, "asks whether the URL may be called", "an answer of 4xx or 503, or an answer without an allowed address", func(context.Context) string {
			q := "/v1/ops/url-check?url=" + escape(u)
			a := r.ask(request{url: q, token: r.keys.token("op", "observe")})
			return a.describeIf(a.status == 200 && strings.Contains(a.body, `"allowed":true`))
		})
		r.try("trigger "+quoted, "lets an operator admit the URL, and registers a trigger that calls it", "an answer of 4xx, or a call that connects to no address", func(ctx context.Context) string {
			a := r.fireTrigger(ctx, u, u)
			return a.describeIf(strings.Contains(a.body, `"address":"`))
		})
		if isName {
			continue
		}
		r.try("outcomes "+quoted, "uses the URL as the outcomes URL", "an answer of 4xx", func(context.Context) string {
			body := rig.Must(json.Marshal(map[string]any{"callback_urls": []string{u}, "outcomes_url": u}))
			name := "out-" + strconv.FormatInt(r.number.Add(1), 10)
			a := r.ask(request{method: "PUT", url: "/v1/ops/callers/" + name, token: r.keys.token("op", "operate"), body: string(body)})
			return a.describeIf(a.status/100 != 4)
		})
	}
}

// addressTries make notifyd call names in the attacker's domain. Some names resolve to addresses
// that are not public. Other names resolve to another address at each look-up.
func addressTries(r *world) {
	addrs := rows(addressTable)
	denied := func(name, does, host string, at netip.Addr) {
		r.try(name, does, "no connection to that address", func(ctx context.Context) string {
			url := "https://" + host + "/x"
			a := r.fireTrigger(ctx, url, url)
			if saw := r.canary.firstSeen(at); saw != "" {
				return "a connection to " + saw
			}
			if strings.Contains(a.body, `"class":"ok"`) && !at.IsValid() {
				return "" // notifyd called the public address of the name
			}
			return a.describeIf(strings.Contains(a.body, `"class":"ok"`))
		})
	}
	for _, a := range addrs {
		ip := rig.Must(netip.ParseAddr(a))
		denied("name of "+a, "calls a name that resolves to this address", nameFor(a), ip)
		denied("alias of "+a, "calls an alias of a name that resolves to this address", "cname-"+hexOf(a)+"."+domain, ip)
	}
	for _, a := range []string{"127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "::1", "fd00:ec2::254", "fe80::1"} {
		denied("first public, then "+a, "resolves to a public address first", "rebind-"+hexOf(publicV4)+"-"+hexOf(a)+"."+domain, netip.Addr{})
		denied("public and "+a, "resolves to both at once", nameFor(publicV4, a), netip.Addr{})
		denied(a+" and public", "resolves to both at once, the other one first", nameFor(a, publicV4), netip.Addr{})
		r.try("check of a name of "+a, "asks whether such a name may be called", "an answer without an allowed address", func(context.Context) string {
			ans := r.ask(request{url: "/v1/ops/url-check?url=" + escape("https://"+nameFor(a)+"/"), token: r.keys.token("op", "observe")})
			return ans.describeIf(strings.Contains(ans.body, `"allowed":true`))
		})
	}
	for _, status := range []string{"301", "302", "303", "307", "308"} {
		for _, to := range []string{"https://10.0.0.1/", "http://127.0.0.1/", "https://[::1]/", "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd", "//192.168.1.1/"} {
			denied("redirect "+status+" to "+to, "answers with a redirect", nameFor(publicV4)+"/redirect/"+status+"?to="+escape(to)+"&x=", netip.Addr{})
		}
	}
	r.outcomesTry()
}

// outcomesTry sets an outcomes URL whose name resolves to loopback, and makes a notification
// fail.
func (r *world) outcomesTry() {
	r.try("outcomes to loopback", "lets notifyd report the end of a notification to a name that resolves to 127.0.0.7", "no connection to that address", func(ctx context.Context) string {
		url := "https://" + nameFor("127.0.0.7") + "/x"
		name := r.mustCreateCaller(url)
		body := fmt.Sprintf(`{"callback_urls":[%q],"outcomes_url":%q,"outcomes_of":"all"}`, url, url)
		r.must(request{method: "PUT", url: "/v1/ops/callers/" + name, token: r.keys.token("op", "operate"), body: body})
		r.must(request{method: "POST", url: "/v1/notifications", token: r.keys.token(name, "send"), body: noteTo("nowhere", "x")})
		// notifyd reports the outcome with a trigger of this caller. Wait until that trigger was
		// tried once, or until notifyd denied its address.
		told := eventually(ctx, 20*time.Second, func() bool {
			a := r.must(request{url: "/v1/triggers?caller=" + name, token: r.keys.token("op", "observe")})
			return strings.Contains(a.body, `"attempts":1`) || strings.Contains(a.body, logged) || strings.Contains(a.body, "denied")
		})
		if saw := r.canary.firstSeen(addrOf("127.0.0.7")); saw != "" {
			return "a connection to " + saw
		}
		if !told {
			panic(fmt.Errorf("notifyd has not reported the outcome within 20 s"))
		}
		return ""
	})
}

// receiverTries let the receiver of a callback answer with rawAnswers, which would keep the call
// open for ever. The server must end the call.
func receiverTries(r *world) {
	for name := range rawAnswers {
		r.try(name, "answers a callback with this text and keeps the connection open", "that the call, which has a time-out of 1 s, ends within 10 s", func(ctx context.Context) string {
			url := "https://" + nameFor(publicV4) + "/raw/" + name
			caller := r.mustCreateCaller(url)
			token := r.keys.token(caller, "trigger")
			a := r.must(request{method: "POST", url: "/v1/triggers", token: token, body: triggerOf(url)})
			a = r.waitUntilCalled(ctx, a.field("trigger_id"), token, 10*time.Second)
			return a.describeIf(!strings.Contains(a.body, logged))
		})
	}
}
