package web

import (
	"bytes"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"golang.org/x/net/html"
)

func TestSignIn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.signIn("writer")
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/ui/jobs" {
		t.Fatalf("%d to %s: %s", w.Code, w.Header().Get("Location"), w.Body)
	}
	c := s.cookies[cookieSession]
	if c == nil || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/ui/" || c.Secure || c.MaxAge != 3600 || strings.Contains(c.Value, "writer") {
		t.Errorf("cookie %+v", c)
	}
	if w := s.get("/ui/jobs"); w.Code != 200 || !strings.Contains(w.Body.String(), "<bdi>sre</bdi>") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	was := c.Value
	s.signIn("writer")
	if now := s.cookies[cookieSession].Value; now == was {
		t.Error("two sessions have the same cookie")
	}
}

func TestSignInOverTLS(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.secure = true
	s.signIn("writer")
	c := s.cookies["__Host-"+cookieSession]
	if c == nil || !c.Secure || c.Path != "/" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Domain != "" {
		t.Fatalf("cookies %+v", s.cookies)
	}
	if w := s.get("/ui/jobs"); w.Code != 200 {
		t.Errorf("%d", w.Code)
	}
	// A cookie that something without TLS has planted is not looked at.
	s.cookies = map[string]*http.Cookie{cookieSession: {Name: cookieSession, Value: c.Value}}
	if w := s.get("/ui/jobs"); w.Code != http.StatusSeeOther {
		t.Errorf("a cookie without prefix holds: %d", w.Code)
	}
}

func TestSignInRefused(t *testing.T) {
	t.Parallel()
	f := func(token string, status int, says string) {
		t.Helper()
		s := newSite(t)
		w := s.signIn(token)
		if w.Code != status || !strings.Contains(w.Body.String(), says) || s.cookies[cookieSession] != nil {
			t.Errorf("%q: %d, cookies %v, %s", token, w.Code, s.cookies, w.Body)
		}
	}
	f("forged", 401, "signature or algorithm is not accepted")
	f("nobody", 403, "neither the scope observe nor operate")
	f("", 422, "Paste a token")
	f(" \n", 422, "Paste a token")
	f("away", 503, "cannot be checked now")

	s := newSite(t)
	long := strings.Repeat("x", maxSessionToken)
	s.users[long], s.users[long+"x"] = s.users["writer"], s.users["writer"]
	if w := s.signIn(long + "x"); w.Code != 413 || !strings.Contains(w.Body.String(), "the token has 3001 bytes, and the page takes at most 3000") || s.cookies[cookieSession] != nil {
		t.Errorf("a token too long for a cookie: %d %s", w.Code, w.Body)
	}
	s.signIn(long)
	if c := s.cookies[cookieSession]; c == nil || len(hostOnly+cookieSession+c.Value) > 4096 || s.get("/ui/jobs").Code != 200 {
		t.Errorf("a token that just fits: %+v", c)
	}
	s = newSite(t)
	s.get("/ui/sign-in")
	if w := s.do("POST", "/ui/sign-in", url.Values{"token": {"writer"}, "csrf": {"0"}}); w.Code != 403 || s.cookies[cookieSession] != nil {
		t.Errorf("a form that is not ours: %d", w.Code)
	}
	s = newSite(t)
	csrf := s.field(s.get("/ui/sign-in").Body.String(), "csrf")
	s.cookies = map[string]*http.Cookie{}
	if w := s.do("POST", "/ui/sign-in", url.Values{"token": {"writer"}, "csrf": {csrf}}); w.Code != 403 || s.cookies[cookieSession] != nil {
		t.Errorf("a form without its cookie: %d", w.Code)
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"/ui/jobs": "/ui/jobs", "/ui/dead-letters?caller=a%26b": "/ui/dead-letters?caller=a%26b", "": "/ui/", "/v1/x": "/ui/", "//evil.example/ui/": "/ui/",
		"https://evil.example/ui/": "/ui/", "javascript:alert(1)": "/ui/", "/ui//evil.example": "/ui/", "/ui/../evil": "/ui/", "/ui/a/%2e%2e/..": "/ui/", "/ui/a/../jobs": "/ui/a/../jobs", `/ui/\evil`: "/ui/", "/ui/%0d%0aX": "/ui/%0d%0aX", "/ui/\r\nX: y": "/ui/",
	} {
		if got := nextOf(in); got != want {
			t.Errorf("%q leads to %q, want %q", in, got, want)
		}
	}
	s := newSite(t)
	w := s.get("/ui/dead-letters?caller=a%26b")
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/ui/sign-in?next=%2Fui%2Fdead-letters%3Fcaller%3Da%2526b" {
		t.Errorf("%d %s", w.Code, w.Header().Get("Location"))
	}
}

func TestNothingWithoutASession(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, p := range append(pages, "/ui/nothing", "/ui/find?q=x") {
		if w := s.get(p); w.Code != http.StatusSeeOther || !strings.HasPrefix(w.Header().Get("Location"), "/ui/sign-in") {
			t.Errorf("%s: %d", p, w.Code)
		}
	}
	s.cookies[cookieSession] = &http.Cookie{Name: cookieSession, Value: "GUESSED"}
	for _, p := range []string{"/ui/jobs", "/ui/jobs/" + jobID, "/ui/sign-out"} {
		if w := s.do("POST", p, url.Values{"csrf": {s.page.sessions.csrf("")}}); w.Code != http.StatusSeeOther && w.Code != 403 {
			t.Errorf("POST %s: %d", p, w.Code)
		}
	}
	if len(s.api.asked) != 0 {
		t.Errorf("the API was asked: %v", s.api.asked)
	}
}

func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	s.now = s.now.Add(time.Hour - time.Second)
	if w := s.get("/ui/jobs"); w.Code != 200 {
		t.Errorf("%d before its end", w.Code)
	}
	s.now = s.now.Add(time.Second)
	if w := s.get("/ui/jobs"); w.Code != http.StatusSeeOther {
		t.Errorf("%d after an hour", w.Code)
	}
	// A token that is not good any more ends it at once, one that cannot be checked does not.
	s.signIn("writer")
	good := s.users["writer"]
	delete(s.users, "writer")
	if w := s.get("/ui/jobs"); w.Code != http.StatusSeeOther || s.cookies[cookieSession] != nil {
		t.Errorf("%d with a token that was withdrawn", w.Code)
	}
	s.users["writer"] = good
	s.signIn("writer")
	csrf := s.field(s.get("/ui/jobs").Body.String(), "csrf")
	if w := s.do("POST", "/ui/sign-out", url.Values{"csrf": {"x"}}); w.Code != 403 || s.cookies[cookieSession] == nil {
		t.Errorf("signed out by another site: %d", w.Code)
	}
	if w := s.do("POST", "/ui/sign-out", url.Values{"csrf": {csrf}}); w.Code != http.StatusSeeOther || s.cookies[cookieSession] != nil {
		t.Errorf("sign-out: %d, cookies %v", w.Code, s.cookies)
	}
}

// TestSessionsOfTwoProcesses: a visitor signs in through one process and goes on
// through another. A process that has another key, and a cookie of which any byte was
// changed, lead to the form to sign in.
func TestSessionsOfTwoProcesses(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.users["operator"] = s.users["writer"] // of a length that leaves bits of the cookie's last byte unused
	a, b := s.page, s.process(testKey)
	at := func(p *Page) *site { s.page = p; return s }
	form := at(a).get("/ui/sign-in").Body.String()
	if w := at(b).do("POST", "/ui/sign-in", url.Values{"token": {"operator"}, "csrf": {s.field(form, "csrf")}}); w.Code != http.StatusSeeOther || s.cookies[cookieSession] == nil {
		t.Fatalf("a form of one process sent to the other: %d %s", w.Code, w.Body)
	}
	for range 2 {
		page := at(a).get("/ui/jobs/" + jobID)
		if page.Code != 200 {
			t.Fatalf("signed in at b, used at a: %d", page.Code)
		}
		change := url.Values{"csrf": {s.field(page.Body.String(), "csrf")}, "change": {"pause"}, "reason": {"x"}}
		if w := at(b).do("POST", "/ui/jobs/"+jobID, change); w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/ui/jobs/"+jobID {
			t.Fatalf("a form of a sent to b: %d %s", w.Code, w.Body)
		}
	}
	good := s.cookies[cookieSession].Value
	refused := func(what, value string, p *Page) {
		t.Helper()
		s.cookies[cookieSession] = &http.Cookie{Name: cookieSession, Value: value}
		if w := at(p).get("/ui/jobs"); w.Code != http.StatusSeeOther || !strings.HasPrefix(w.Header().Get("Location"), "/ui/sign-in") || s.cookies[cookieSession] != nil {
			t.Errorf("%s: %d", what, w.Code)
		}
	}
	for i := range good {
		others := "Ax"
		if i == len(good)-1 {
			others = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
		}
		for _, to := range others {
			if changed := good[:i] + string(to) + good[i+1:]; changed != good {
				refused("byte "+strconv.Itoa(i)+" changed", changed, b)
			}
		}
	}
	refused("cut", good[:len(good)-4], b)
	refused("longer", good+"AAAA", b)
	refused("another key", good, s.process(bytes.Repeat([]byte("K"), 32)))
	s.cookies[cookieSession] = &http.Cookie{Name: cookieSession, Value: good}
	if w := at(b).get("/ui/jobs"); w.Code != 200 {
		t.Errorf("the cookie itself: %d", w.Code)
	}
	delete(s.users, "operator")
	refused("a token that was withdrawn", good, b)
	if _, err := New(Config{API: s.api, Verify: a.cfg.Verify, Key: testKey[1:]}); err == nil {
		t.Error("a key of 31 bytes is taken")
	}
}

// TestForms: what is not a form of the session changes nothing.
func TestForms(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	plan := s.get("/ui/plan?kind=replay&caller=shop").Body.String()
	form := func() url.Values {
		return url.Values{"csrf": {s.field(plan, "csrf")}, "spec": {s.field(plan, "spec")}, "digest": {s.field(plan, "digest")}, "entries": {s.field(plan, "entries")}, "reason": {"the carrier\r\nis back"}, "change": {"pause"}}
	}
	without := form()
	without.Del("csrf")
	other := form()
	other.Set("csrf", s.page.sessions.csrf("another session"))
	for _, path := range []string{"/ui/jobs", "/ui/jobs/" + jobID, "/ui/circuits"} {
		for name, w := range map[string]int{
			"without its token": s.do("POST", path, without).Code,
			"of another":        s.do("POST", path, other).Code,
			"cross-site":        s.do("POST", path, form(), header("Sec-Fetch-Site", "cross-site")).Code,
			"same-site":         s.do("POST", path, form(), header("Sec-Fetch-Site", "same-site")).Code,
			"other origin":      s.do("POST", path, form(), header("Origin", "https://evil.example")).Code,
			"too large":         s.do("POST", path, url.Values{"csrf": form()["csrf"], "spec": {strings.Repeat("x", maxForm)}}).Code - 422 + 403,
		} {
			if w != 403 {
				t.Errorf("%s %s: %d", path, name, w)
			}
		}
		if n := s.api.posts(); len(n) != 0 {
			t.Fatalf("something was changed: %v", n)
		}
	}
	w := s.do("POST", "/ui/jobs", form(), header("Sec-Fetch-Site", "same-origin"), header("Origin", "http://example.com"))
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/ui/jobs/"+jobID {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	w = s.do("POST", "/ui/jobs/"+jobID, form())
	if w.Code != http.StatusSeeOther {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	posts := s.api.posts()
	if len(posts) != 2 || posts[1].path != "/v1/ops/jobs/"+jobID || posts[1].body != `{"change":"pause"}` {
		t.Fatalf("%+v", posts)
	}
	// Exactly the plan that was shown, with who asks and why.
	p := posts[0]
	want := `{"spec":{"kind":"replay","filter":{"caller":"shop"},"up_to":77,"rate":50,"canary":10,"abort_if":0.2,"expired":"skip","collapse":"none","order":"offset","open_circuit":"stop"},"digest":"` + digest + `","entries":12}`
	if p.body != want || p.header.Get(api.HeaderReason) != "the carrier is back" || p.header.Get("Authorization") != "Bearer writer" || p.header.Get(api.HeaderContext) == "" {
		t.Errorf("%s\n%v", p.body, p.header)
	}
	for _, bad := range []url.Values{{"spec": {"!"}}, {"spec": {"e30x"}}, {"change": {"explode"}}} {
		bad.Set("csrf", s.field(plan, "csrf"))
		path := "/ui/jobs"
		if bad.Has("change") {
			path += "/" + jobID
		}
		if w := s.do("POST", path, bad); w.Code != 422 {
			t.Errorf("%v: %d", bad, w.Code)
		}
	}
	s.api.problem = "stale_plan"
	if w := s.do("POST", "/ui/jobs", form()); w.Code != 409 || !strings.Contains(w.Body.String(), "notifyctl explain stale_plan") && !strings.Contains(w.Body.String(), "<span>stale_plan</span>") {
		t.Errorf("a stale plan: %d %s", w.Code, w.Body)
	}
}

// TestCircuits: a caller's circuit is held and reset, in the name of who is signed
// in; what cannot be is not offered, and refused before the API is asked.
func TestCircuits(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	page := s.get("/ui/circuits").Body.String()
	csrf := s.field(page, "csrf")
	var offered []string
	for n := range parse(t, page).Descendants() {
		if n.Data == "option" {
			offered = append(offered, text(n))
		}
	}
	if !slices.Equal(offered, []string{"caller:shop", "provider:twilio", "provider:sendgrid", "provider:apns"}) {
		t.Errorf("offered are %q", offered)
	}
	for i, to := range []string{"open", "closed", "reset"} {
		w := s.do("POST", "/ui/circuits", url.Values{"csrf": {csrf}, "circuit": {"caller:shop"}, "change": {to}, "reason": {"it hangs"}})
		posts := s.api.posts()
		if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/ui/circuits" || len(posts) != i+1 {
			t.Fatalf("%s: %d %s, %+v", to, w.Code, w.Body, posts)
		}
		p := posts[i]
		if p.method != http.MethodPut || p.path != "/v1/ops/circuits/caller:shop" || p.body != `{"to":"`+to+`"}` || p.header.Get("Authorization") != "Bearer writer" ||
			p.header.Get(api.HeaderReason) != "it hangs" || p.header.Get(api.HeaderContext) == "" {
			t.Errorf("%+v", p)
		}
	}
	for _, bad := range []url.Values{{"circuit": {"caller:shop"}}, {"circuit": {"caller:shop"}, "change": {"explode"}}, {"change": {"open"}}} {
		bad.Set("csrf", csrf)
		if w := s.do("POST", "/ui/circuits", bad); w.Code != 422 || len(s.api.posts()) != 3 {
			t.Errorf("%v: %d", bad, w.Code)
		}
	}
	s.api.problem = "not_settable"
	if w := s.do("POST", "/ui/circuits", url.Values{"csrf": {csrf}, "circuit": {"provider:apns"}, "change": {"open"}}); w.Code != 409 || !strings.Contains(w.Body.String(), "not_settable") {
		t.Errorf("what the API refuses: %d %s", w.Code, w.Body)
	}
}

// TestSuppressions: an address is lifted off one user's list, in the name of who is
// signed in and with a reason, only when the box is ticked; who only looks gets a
// command and no form.
func TestSuppressions(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	page := s.get("/ui/suppressions").Body.String()
	form := url.Values{"csrf": {s.field(page, "csrf")}, "address": {"+49" + s.api.text}, "user_id": {s.api.text}, "reason": {"it is repaired"}}
	for _, name := range []string{"address", "user_id"} {
		if !strings.Contains(page, `<input type="hidden" name="`+name+`" value="`+strings.ReplaceAll(form.Get(name), "+", "&#43;")+`">`) {
			t.Errorf("the form has no %s", name)
		}
	}
	if w := s.do("POST", "/ui/suppressions", form); w.Code != 422 || len(s.api.posts()) != 0 {
		t.Errorf("without the tick: %d %s", w.Code, w.Body)
	}
	form.Set("sure", "yes")
	w := s.do("POST", "/ui/suppressions", form)
	posts := s.api.posts()
	if w.Code != http.StatusSeeOther || len(posts) != 1 || posts[0].path != "/v1/ops/suppressions:lift" || posts[0].header.Get(api.HeaderReason) != "it is repaired" ||
		posts[0].body != `{"address":"+49`+s.api.text+`","user_id":"`+s.api.text+`"}` {
		t.Fatalf("%d %s, %+v", w.Code, w.Body, posts)
	}
	s.signIn("viewer")
	if page := s.get("/ui/suppressions").Body.String(); strings.Contains(page, `name="sure"`) || !strings.Contains(page, "suppression") {
		t.Error("who only looks is offered the form")
	}
}

func TestDiscardIsTyped(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	plan := s.get("/ui/plan?kind=discard&caller=shop").Body.String()
	form := url.Values{"csrf": {s.field(plan, "csrf")}, "spec": {s.field(plan, "spec")}, "digest": {digest}}
	for _, typed := range []string{"", "yes", "Discard all"} {
		form.Set("confirm", typed)
		if w := s.do("POST", "/ui/jobs", form); w.Code != 422 || len(s.api.posts()) != 0 {
			t.Errorf("%q: %d", typed, w.Code)
		}
	}
	form.Set("confirm", "discard")
	if w := s.do("POST", "/ui/jobs", form); w.Code != http.StatusSeeOther || len(s.api.posts()) != 1 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestCancelIsConfirmed: a job is not ended for good by one click.
func TestCancelIsConfirmed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	page := s.get("/ui/jobs/" + jobID).Body.String()
	if !strings.Contains(page, `name="confirm" value="cancel"`) {
		t.Error("the page does not ask")
	}
	form := url.Values{"csrf": {s.field(page, "csrf")}, "change": {"cancel"}}
	if w := s.do("POST", "/ui/jobs/"+jobID, form); w.Code != 422 || len(s.api.posts()) != 0 {
		t.Errorf("%d, %v", w.Code, s.api.posts())
	}
	form.Set("confirm", "cancel")
	if w := s.do("POST", "/ui/jobs/"+jobID, form); w.Code != http.StatusSeeOther || len(s.api.posts()) != 1 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestAuditRows: what was set is shown, and a refused call is one row.
func TestAuditRows(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("viewer")
	page := html.UnescapeString(s.get("/ui/audit").Body.String())
	if !strings.Contains(page, `{"paused":true}`) || strings.Count(page, ">smss<") != 1 || !strings.Contains(page, "refused: lane_not_found") || strings.Contains(page, ">12 ") {
		t.Error(page)
	}
	if page = s.get("/ui/circuits").Body.String(); !strings.Contains(page, "errors, twilio_20429") {
		t.Error("the page does not say why a circuit is not closed")
	}
}

// TestCampaignCounts: what is in no state is a number, whatever holds it.
func TestCampaignCounts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("viewer")
	if page := s.get("/ui/id/" + camp).Body.String(); !strings.Contains(page, "<dt>Not counted</dt><dd>1,234</dd>") {
		t.Error("1,234 are not counted, and the page says otherwise")
	}
}

// TestReadOnly: who only looks is shown all of it, is offered nothing, and is
// refused before the API is asked.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("viewer")
	csrf := ""
	for _, p := range pages {
		w := s.get(p)
		if w.Code != 200 {
			t.Errorf("%s: %d", p, w.Code)
		}
		csrf = s.field(w.Body.String(), "csrf")
		for n := range parse(t, w.Body.String()).Descendants() {
			if n.Data == "form" && attr(n, "method") == "post" && attr(n, "action") != "/ui/sign-out" {
				t.Errorf("%s offers %s", p, attr(n, "action"))
			}
		}
		if !strings.Contains(w.Body.String(), "read-only") {
			t.Errorf("%s does not say that it is read-only", p)
		}
	}
	for _, p := range []string{"/ui/jobs", "/ui/jobs/" + jobID, "/ui/circuits"} {
		if w := s.do("POST", p, url.Values{"csrf": {csrf}, "change": {"cancel"}, "spec": {"e30"}, "circuit": {"caller:shop"}}); w.Code != 403 || !strings.Contains(w.Body.String(), "read_only") {
			t.Errorf("POST %s: %d %s", p, w.Code, w.Body)
		}
	}
	if n := s.api.posts(); len(n) != 0 {
		t.Errorf("something was changed: %v", n)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	check := func(what string, h http.Header, cache string) {
		t.Helper()
		csp := h.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none'; ") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") || !strings.Contains(csp, "frame-ancestors 'none'") || !strings.Contains(csp, "base-uri 'none'") || !strings.Contains(csp, "form-action 'self'") {
			t.Errorf("%s: policy %q", what, csp)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "same-origin" || h.Get("Cache-Control") != cache {
			t.Errorf("%s: %v", what, h)
		}
	}
	check("redirect", s.get("/ui/").Header(), "no-store")
	check("sign-in", s.get("/ui/sign-in").Header(), "no-store")
	check("refused", s.do("POST", "/ui/jobs", nil, header("Sec-Fetch-Site", "cross-site")).Header(), "no-store")
	check("style", s.get(s.page.style).Header(), "public, max-age=31536000, immutable")
	check("no file", s.get("/ui/assets/x").Header(), "no-store")
	s.signIn("writer")
	for _, p := range append(pages, "/ui/nothing") {
		check(p, s.get(p).Header(), "no-store")
	}
	if w := s.do("DELETE", "/ui/jobs", nil); w.Code != 405 {
		t.Errorf("DELETE: %d", w.Code)
	}
}

// TestHarmless: whatever names and payloads hold, a page has the elements it has
// with harmless ones, and no character that a terminal or the direction of text
// would act on.
func TestHarmless(t *testing.T) {
	t.Parallel()
	plain, hostile := newSite(t), newSite(t)
	hostile.api.text = evil
	hostile.users["writer"] = User{evil, true, true}
	plain.signIn("writer")
	hostile.signIn("writer")
	elements := func(page string) map[string]int {
		n := map[string]int{}
		for e := range parse(t, page).Descendants() {
			if e.Type != html.ElementNode {
				continue
			}
			n[e.Data]++
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Key, "on") || a.Key == "style" || a.Key == "srcdoc" {
					n["attribute "+a.Key]++
				}
				if (a.Key == "href" || a.Key == "src" || a.Key == "action") && a.Val != "" && !strings.HasPrefix(a.Val, "/ui/") && a.Val != "#main" && a.Val != "#checks" {
					n["link "+a.Val]++
				}
			}
		}
		delete(n, "span") // a command with blanks has more words
		return n
	}
	all := append(pages, "/ui/dead-letters?caller="+url.QueryEscape(evil)+"&code="+url.QueryEscape(evil), "/ui/users/"+url.PathEscape(evil), "/ui/plan?kind=replay&caller="+url.QueryEscape(evil), "/ui/id/"+url.PathEscape(evil))
	for _, p := range all {
		a, b := plain.get(p), hostile.get(p)
		if a.Code != b.Code {
			t.Errorf("%s: %d and %d", p, a.Code, b.Code)
		}
		text := b.Body.String()
		if i := strings.IndexFunc(text, func(r rune) bool { return notify.IsControl(r) && r != '\n' }); i >= 0 {
			t.Errorf("%s: a control character in %q", p, text[max(0, i-60):min(len(text), i+20)])
		}
		got, want := elements(text), elements(a.Body.String())
		for k, v := range got {
			if want[k] != v {
				t.Errorf("%s: %d of %s, with plain names %d", p, v, k, want[k])
			}
		}
	}
	if w := hostile.get("/ui/id/" + single); !strings.Contains(w.Body.String(), `\u202e`) {
		t.Error("what was escaped is not shown")
	}
}

// TestLinks: every link and file of every page answers, and leads nowhere else.
func TestLinks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	seen := map[string]bool{}
	todo := append([]string{"/ui/sign-in"}, pages...)
	for len(todo) > 0 {
		at := todo[0]
		todo = todo[1:]
		if seen[at] {
			continue
		}
		seen[at] = true
		if len(seen) > 500 {
			t.Fatal("there is no end to links")
		}
		w := s.get(at)
		if w.Code != 200 && !(w.Code == http.StatusSeeOther && strings.HasPrefix(at, "/ui/find")) {
			t.Errorf("%s: %d", at, w.Code)
		}
		if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
			continue
		}
		ids := map[string]int{}
		var anchors []string
		for n := range parse(t, w.Body.String()).Descendants() {
			if id := attr(n, "id"); id != "" {
				ids[id]++
			}
			for _, name := range []string{"for", "aria-labelledby", "aria-describedby"} {
				if v := attr(n, name); v != "" {
					anchors = append(anchors, v)
				}
			}
			to := attr(n, "href") + attr(n, "src")
			if n.Data == "form" && attr(n, "method") == "get" {
				to = attr(n, "action")
			}
			switch {
			case to == "":
			case strings.HasPrefix(to, "#"):
				anchors = append(anchors, to[1:])
			case strings.HasPrefix(to, "/ui/"):
				todo = append(todo, to)
			default:
				t.Errorf("%s links to %s", at, to)
			}
		}
		for _, a := range anchors {
			if ids[a] != 1 {
				t.Errorf("%s: %d elements are called %q", at, ids[a], a)
			}
		}
	}
	if len(seen) < 25 {
		t.Errorf("only %d links", len(seen))
	}
}

// TestCommands: each page says what shows the same on a command line.
func TestCommands(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	f := func(page, command string) {
		t.Helper()
		for n := range parse(t, s.get(page).Body.String()).Descendants() {
			if n.Data == "code" && attr(n, "class") == "cmd" && text(n) == command {
				return
			}
		}
		t.Errorf("%s does not show %s", page, command)
	}
	f("/ui/", "notifyctl rates")
	f("/ui/", "notifyctl doctor")
	f("/ui/", "notifyctl dlq top --caller shop --since -24h")
	f("/ui/", "notifyctl job show "+jobID)
	f("/ui/circuits", "notifyctl circuit reset caller:shop")
	f("/ui/circuits", "notifyctl circuit accounts")
	f("/ui/circuits", "notifyctl circuit open caller:shop")
	f("/ui/circuits", "notifyctl circuit close caller:shop")
	f("/ui/dead-letters?caller=shop&since=-24h", "notifyctl dlq ls --caller shop --since -24h --state dead")
	f("/ui/dead-letters?attempts=%3E%3D3", "notifyctl dlq ls --attempts '>=3' --state dead")
	f("/ui/plan?kind=replay&caller=shop&rate=200&canary=0&abort_if=0&expired=send", "notifyctl dlq replay --caller shop --rate 200 --canary 0 --abort-if never --expired send --dry-run")
	f("/ui/plan?kind=discard&all=1", "notifyctl dlq discard --all --dry-run")
	f("/ui/id/"+single, "notifyctl why "+single)
	f("/ui/id/"+single, "notifyctl dlq show "+single)
	f("/ui/id/"+trigger, "notifyctl why "+trigger)
	f("/ui/id/"+camp, "notifyctl campaign show "+camp)
	f("/ui/users/ann", "notifyctl ls --user ann")
	f("/ui/lanes", "notifyctl lane ls")
	f("/ui/schedules?status=SCHEDULED&user=ann&caller=shop", "notifyctl schedule ls --status SCHEDULED --user ann --caller shop")
	f("/ui/campaigns?caller=shop", "notifyctl campaign ls --caller shop")
	f("/ui/campaigns", "notifyctl campaign resume "+camp)
	f("/ui/callers", "notifyctl caller ls")
	f("/ui/notifications?status=FAILED&channel=sms&caller=shop&since=-1h&template=t1&code=twilio_21211&campaign="+camp, "notifyctl ls --channel sms --status FAILED --code twilio_21211 --caller shop --template t1 --campaign "+camp+" --since -1h")
	f("/ui/forecast", "notifyctl schedule forecast")
	f("/ui/jobs/"+jobID, "notifyctl job pause "+jobID)
	f("/ui/audit", "notifyctl audit verify")
}

func text(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}

// TestQuote: a shell reads back what was quoted, and nothing else.
func TestCommand(t *testing.T) {
	t.Parallel()
	if got := command("dlq", "ls", "--caller", "", "--code", "x y", ""); got != "notifyctl dlq ls --code 'x y'" {
		t.Error(got)
	}
}

// TestPartsThatAreAway: what cannot be had is said, and the rest is shown.
func TestPartsThatAreAway(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/v1/ops/rates", "/v1/ops/lag", "/v1/ops/doctor", "/v1/ops/circuits", "/v1/ops/accounts", "/v1/ops/dead-letters:top", "/v1/ops/jobs", "/v1/schedules/forecast"} {
		s := newSite(t)
		s.signIn("writer")
		s.api.broken = path
		w := s.get("/ui/")
		if body := w.Body.String(); w.Code != 200 || !strings.Contains(body, "it is away") || strings.Count(body, "<section") != 7 {
			t.Errorf("without %s: %d, %d sections", path, w.Code, strings.Count(body, "<section"))
		}
	}
	s := newSite(t)
	s.signIn("writer")
	s.api.broken = "/v1/ops/jobs"
	if w := s.get("/ui/jobs"); w.Code != 503 || !strings.Contains(w.Body.String(), "it is away") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestNoJobs: an empty list says how it is filled.
func TestNoJobs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	s.api.noJobs = true
	if w := s.get("/ui/jobs"); w.Code != 200 || !strings.Contains(w.Body.String(), "None. A replay starts at") || strings.Contains(w.Body.String(), "<table") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestTopIsRemembered: pages that are left open do not walk over every dead letter
// each time.
func TestTopIsRemembered(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	for range 3 {
		s.get("/ui/")
	}
	if n := s.api.count("/v1/ops/dead-letters:top"); n != 2 { // a day, an hour
		t.Errorf("asked %d times", n)
	}
	s.now = s.now.Add(rememberFor)
	s.get("/ui/")
	if n := s.api.count("/v1/ops/dead-letters:top"); n != 4 {
		t.Errorf("asked %d times after a while", n)
	}
	// An answer that took long is kept longer.
	var r cachedAnswer[int]
	now := noon
	asked := 0
	question := func() (int, error) {
		asked++
		now = now.Add(3 * time.Second)
		return asked, nil
	}
	for range 5 {
		if v, err := r.get(func() time.Time { return now }, question); v != 1 || err != nil {
			t.Errorf("%d, %v", v, err)
		}
		now = now.Add(11 * time.Second)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	for q, want := range map[string]string{
		single: "/ui/id/" + single, trigger: "/ui/id/" + trigger, camp: "/ui/id/" + camp, jobID: "/ui/jobs/" + jobID, "ann": "/ui/users/ann",
		"a/b?c": "/ui/users/a%2Fb%3Fc", "": "/ui/", " " + single + "\n": "/ui/id/" + single, "//evil.example": "/ui/users/%2F%2Fevil.example",
	} {
		if w := s.get("/ui/find?q=" + url.QueryEscape(q)); w.Code != http.StatusSeeOther || w.Header().Get("Location") != want {
			t.Errorf("%q: %d to %q, want %q", q, w.Code, w.Header().Get("Location"), want)
		}
	}
}

func TestFilterOfThePage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	s.get("/ui/dead-letters?caller=shop&since=-24h&channel=sms&attempts=%3E%3D3")
	want := "/v1/ops/dead-letters?attempts=%3E%3D3&caller=shop&channel=sms&limit=25&since=2026-11-21T12%3A00%3A00Z&state=dead"
	if s.api.count(want) != 1 {
		t.Errorf("not asked for %s: %v", want, s.api.asked)
	}
	if w := s.get("/ui/dead-letters?since=yesterday"); w.Code != 422 || !strings.Contains(w.Body.String(), "bad_time") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	// Nothing mistyped leaves out the canary or the guard.
	for _, bad := range []string{"rate=fast", "rate=NaN", "rate=Inf", "rate=-1", "canary=NaN", "canary=0.5", "canary=-5", "canary=1e30", "canary=1001", "abort_if=NaN", "abort_if=-3", "abort_if=101"} {
		if w := s.get("/ui/plan?kind=replay&caller=shop&" + bad); w.Code != 422 || !strings.Contains(w.Body.String(), "bad_number") {
			t.Errorf("%s: %d %s", bad, w.Code, w.Body)
		}
	}
	// A part that cannot be read is no part that is left out.
	for _, bad := range []string{"/ui/dead-letters?caller=shop&where=any(.;.)", "/ui/plan?kind=discard&caller=shop&code=%zz"} {
		if w := s.get(bad); w.Code != 400 || !strings.Contains(w.Body.String(), "malformed") {
			t.Errorf("%s: %d %s", bad, w.Code, w.Body)
		}
	}
	if w := s.get("/ui/plan?kind=replay"); w.Code != 200 || !strings.Contains(w.Body.String(), "<strong>every</strong> dead letter") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if n := s.api.count("/v1/ops/plans"); n != 0 {
		t.Errorf("a plan without a filter was asked for %d times", n)
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{0: "0", 1500 * time.Microsecond: "1.5 ms", 90 * time.Second: "1m30s", time.Hour: "1h", 50 * time.Hour: "2d2h", -time.Second: "-1.0s"} {
		if got := span(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "now", -5 * time.Second: "in 5 s", 90 * time.Second: "1 min ago", 49 * time.Hour: "2 d ago"} {
		if got := relativeTime(noon.Add(-d), noon); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.001: "<0.01", 1.234: "1.23", 45.67: "45.7", 1234567.8: "1,234,568"} {
		if got := rate(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
	if number(-1234) != "-1,234" || number(int64(999)) != "999" {
		t.Error(number(-1234), number(int64(999)))
	}
}

// TestNotifications: the form asks the API for what it says, and the link to older
// ones keeps the filter.
func TestNotifications(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	page := s.get("/ui/notifications?status=FAILED&since=-1h&channel=sms&caller=shop")
	body := page.Body.String()
	if page.Code != 200 || !strings.Contains(body, single) || !strings.Contains(body, `<option selected>FAILED</option>`) {
		t.Fatalf("%d %s", page.Code, body)
	}
	if !strings.Contains(body, `/ui/notifications?caller=shop&amp;channel=sms&amp;cursor=more`) || !strings.Contains(body, "since=-1h&amp;status=FAILED") {
		t.Error("the link to older ones lacks the filter or the cursor")
	}
	s.api.mu.Lock()
	asked := s.api.asked[len(s.api.asked)-1].path
	s.api.mu.Unlock()
	at := url.QueryEscape(noon.Add(-time.Hour).Format(time.RFC3339Nano))
	if want := "/v1/notifications?caller=shop&channel=sms&limit=50&since=" + at + "&status=FAILED"; asked != want {
		t.Errorf("asked %s, want %s", asked, want)
	}
	if body := s.get("/ui/notifications?status=UNKNOWN").Body.String(); !strings.Contains(body, "there may be older ones") || !strings.Contains(body, `rel="next"`) {
		t.Error("a page that ended at its bound reads as the end")
	}
	if w := s.get("/ui/notifications?since=soon"); w.Code != 422 {
		t.Errorf("a time that is none: %d", w.Code)
	}
}

// A lane is paused and let go on from the page, in the name of the signed-in operator
// and with a reason; a token that only looks gets a command and no form.
func TestLanes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	page := s.get("/ui/lanes").Body.String()
	form := url.Values{"csrf": {s.field(page, "csrf")}, "lane": {"push-bulk"}, "change": {"resume"}, "reason": {"it is repaired"}}
	w := s.do("POST", "/ui/lanes", form)
	posts := s.api.posts()
	if w.Code != http.StatusSeeOther || len(posts) != 1 || posts[0].path != "/v1/ops/lanes/push-bulk" ||
		posts[0].body != `{"paused":false,"reason":"it is repaired"}` || posts[0].header.Get(api.HeaderReason) != "it is repaired" {
		t.Fatalf("%d %s, %+v", w.Code, w.Body, posts)
	}
	for name, value := range map[string]string{"change": "stop", "lane": ""} {
		bad := maps.Clone(form)
		bad[name] = []string{value}
		if w := s.do("POST", "/ui/lanes", bad); w.Code != 422 || len(s.api.posts()) != 1 {
			t.Errorf("%s %q: %d, %d posts", name, value, w.Code, len(s.api.posts()))
		}
	}
	s.signIn("viewer")
	if page := s.get("/ui/lanes").Body.String(); strings.Contains(page, `name="change"`) || !strings.Contains(page, "<span>pause</span> <span>push</span>") {
		t.Error("a token that only looks has no command, or a form")
	}
}

// The lists of schedules and campaigns go on behind a cursor, with their filter.
func TestListsGoOn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("viewer")
	for page, next := range map[string]string{
		"/ui/schedules?status=SCHEDULED&caller=shop": "/ui/schedules?caller=shop&amp;cursor=more",
		"/ui/campaigns?caller=shop":                  "/ui/campaigns?caller=shop&amp;cursor=more",
	} {
		w := s.get(page)
		if body := w.Body.String(); w.Code != 200 || !strings.Contains(body, next) || !strings.Contains(body, `rel="next"`) {
			t.Errorf("%s: %d, no link %s", page, w.Code, next)
		}
	}
}
