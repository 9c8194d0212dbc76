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
)

//go:embed testdata/urls.txt
var urlTable string

//go:embed testdata/addresses.txt
var addressTable string

// rows are the lines of a table of testdata, without comments. A row is a Go string
// where it begins with a quote.
func rows(table string) (out []string, err error) {
	for line := range strings.Lines(table) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if line[0] == '"' {
			if line, err = strconv.Unquote(line); err != nil {
				return nil, err
			}
		}
		out = append(out, line)
	}
	return out, nil
}

func addrOf(s string) netip.Addr { return netip.MustParseAddr(s) }

// urlTries are spellings of URLs that no call may be made to. Each is asked about,
// given as a base URL with a trigger below it, and given as the URL of outcomes.
func urlTries(*rig) (out []try, err error) {
	urls, err := rows(urlTable)
	if err != nil {
		return nil, err
	}
	for _, u := range urls {
		u, isName := strings.CutPrefix(u, "~")
		quoted := strconv.QuoteToASCII(u)
		out = append(out, try{
			name: "check " + quoted, does: "asks whether it may be called", refused: "an answer of 4xx or 503, or of no address that is allowed",
			run: func(_ context.Context, r *rig) (string, error) {
				q := "/v1/ops/url-check?url=" + escape(u)
				a, err := r.ask(request{url: q, token: r.keys.token("op", "observe")})
				if err == nil && a.status == 200 && strings.Contains(a.body, `"allowed":true`) {
					return a.String(), nil
				}
				return "", err
			},
		}, try{
			name: "trigger " + quoted, does: "has an operator admit it and calls it", refused: "an answer of 4xx, or a call that connects to no address",
			run: func(ctx context.Context, r *rig) (string, error) {
				a, err := r.fire(ctx, u, u)
				if err == nil && strings.Contains(a.body, `"address":"`) {
					return a.String(), nil
				}
				return "", err
			},
		})
		if isName {
			continue
		}
		out = append(out, try{
			name: "outcomes " + quoted, does: "gives it as the URL of outcomes", refused: "an answer of 4xx",
			run: func(_ context.Context, r *rig) (string, error) {
				body, err := json.Marshal(map[string]any{"callback_urls": []string{u}, "outcomes_url": u})
				if err != nil {
					return "", err
				}
				name := "out-" + strconv.FormatInt(r.number.Add(1), 10)
				a, err := r.ask(request{method: "PUT", url: "/v1/ops/callers/" + name, token: r.keys.token("op", "operate"), body: string(body)})
				if err == nil && a.status/100 != 4 {
					return a.String(), nil
				}
				return "", err
			},
		})
	}
	return out, nil
}

// addressTries are names of the attacker's that resolve to addresses of other networks
// than the internet, and such that change their minds.
func addressTries(*rig) (out []try, err error) {
	addrs, err := rows(addressTable)
	if err != nil {
		return nil, err
	}
	denied := func(name, does, host string, at netip.Addr) {
		out = append(out, try{
			name: name, does: does, refused: "no connection to that address",
			run: func(ctx context.Context, r *rig) (string, error) {
				url := "https://" + host + "/x"
				a, err := r.fire(ctx, url, url)
				if err != nil {
					return "", err
				}
				if saw := r.canary.saw(at); saw != "" {
					return "a connection to " + saw, nil
				}
				if strings.Contains(a.body, `"class":"ok"`) && !at.IsValid() {
					return "", nil // it went to the public one of its addresses
				}
				if strings.Contains(a.body, `"class":"ok"`) {
					return a.String(), nil
				}
				return "", nil
			},
		})
	}
	for _, a := range addrs {
		ip, err := netip.ParseAddr(a)
		if err != nil {
			return nil, err
		}
		denied("name of "+a, "calls a name that resolves to it", named(a), ip)
		denied("alias of "+a, "calls an alias of such a name", "cname-"+hexOf(a)+"."+domain, ip)
	}
	for _, a := range []string{"127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "::1", "fd00:ec2::254", "fe80::1"} {
		denied("first public, then "+a, "resolves to a public address first", "rebind-"+hexOf(publicV4)+"-"+hexOf(a)+"."+domain, netip.Addr{})
		denied("public and "+a, "resolves to both at once", named(publicV4, a), netip.Addr{})
		denied(a+" and public", "resolves to both at once, the other one first", named(a, publicV4), netip.Addr{})
		out = append(out, try{
			name: "check of a name of " + a, does: "asks whether such a name may be called", refused: "no address that is allowed",
			run: func(_ context.Context, r *rig) (string, error) {
				ans, err := r.ask(request{url: "/v1/ops/url-check?url=" + escape("https://"+named(a)+"/"), token: r.keys.token("op", "observe")})
				if err == nil && strings.Contains(ans.body, `"allowed":true`) {
					return ans.String(), nil
				}
				return "", err
			},
		})
	}
	for _, status := range []string{"301", "302", "303", "307", "308"} {
		for _, to := range []string{"https://10.0.0.1/", "http://127.0.0.1/", "https://[::1]/", "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd", "//192.168.1.1/"} {
			denied("redirect "+status+" to "+to, "answers with a redirect", named(publicV4)+"/redirect/"+status+"?to="+escape(to)+"&x=", netip.Addr{})
		}
	}
	out = append(out, outcomesTry())
	return out, nil
}

// outcomesTry has a failed notification told to a name that is the loopback's.
func outcomesTry() try {
	return try{
		name: "outcomes to loopback", does: "has the end of a notification told to a name of 127.0.0.7", refused: "no connection to it",
		run: func(ctx context.Context, r *rig) (string, error) {
			url := "https://" + named("127.0.0.7") + "/x"
			name, a, err := r.caller(url)
			if err != nil || a.status != 200 {
				return "", fmt.Errorf("%s: %w", a, err)
			}
			body := fmt.Sprintf(`{"callback_urls":[%q],"outcomes_url":%q,"outcomes_of":"all"}`, url, url)
			if _, err := r.must(request{method: "PUT", url: "/v1/ops/callers/" + name, token: r.keys.token("op", "operate"), body: body}); err != nil {
				return "", err
			}
			if _, err := r.must(request{method: "POST", url: "/v1/notifications", token: r.keys.token(name, "send"), body: noteTo("nowhere", "x")}); err != nil {
				return "", err
			}
			// The end is told by a trigger of the caller's: it is refused once it was called.
			told, err := eventually(ctx, 20*time.Second, func() (bool, error) {
				a, err := r.must(request{url: "/v1/triggers?caller=" + name, token: r.keys.token("op", "observe")})
				return strings.Contains(a.body, `"attempts":1`) || strings.Contains(a.body, `"log":[`) || strings.Contains(a.body, "denied"), err
			})
			if err != nil {
				return "", err
			}
			if saw := r.canary.saw(addrOf("127.0.0.7")); saw != "" {
				return "a connection to " + saw, nil
			}
			if !told {
				return "", fmt.Errorf("no outcome was told")
			}
			return "", nil
		},
	}
}

// receiverTries are answers of receivers that would hold a call for ever.
func receiverTries(*rig) (out []try, err error) {
	for name := range rawAnswers {
		out = append(out, try{
			name: name, does: "answers a callback so, and keeps the connection", refused: "an end of the call within 10 s, with a time-out of 1 s",
			run: func(ctx context.Context, r *rig) (string, error) {
				url := "https://" + named(publicV4) + "/raw/" + name
				caller, a, err := r.caller(url)
				if err != nil || a.status != 200 {
					return "", fmt.Errorf("%s: %w", a, err)
				}
				token := r.keys.token(caller, "trigger")
				if a, err = r.must(request{method: "POST", url: "/v1/triggers", token: token, body: triggerOf(url)}); err != nil {
					return "", err
				}
				path := "/v1/triggers/" + a.field("trigger_id")
				over, err := eventually(ctx, 10*time.Second, func() (bool, error) {
					a, err = r.must(request{url: path, token: token})
					return strings.Contains(a.body, `"log":[`), err
				})
				if err == nil && !over {
					return a.String(), nil
				}
				return "", err
			},
		})
	}
	return out, nil
}
