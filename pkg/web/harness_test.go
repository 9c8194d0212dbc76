package web

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"go.uber.org/goleak"
	"golang.org/x/net/html"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// evil is what a name or a payload may hold: markup, quotes, an escape sequence of
// terminals, and characters that turn the direction of text.
const evil = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e\u2066\u0085&{{.}}\n-"

// fake is an API: what each route answers, and what it was asked.
type fake struct {
	mu      sync.Mutex
	text    string // in every string that callers choose
	broken  string // path prefix that answers 503
	noJobs  bool
	cluster bool   // there are three processes, one of which does not answer
	problem string // code of the answer to POST /v1/ops/jobs and to any PUT; empty: it is done
	asked   []asked
}

type asked struct {
	method, path, body string
	header             http.Header
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.asked = append(f.asked, asked{r.Method, r.URL.RequestURI(), string(body), r.Header.Clone()})
	broken, problem := f.broken, f.problem
	f.mu.Unlock()
	answer := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	if broken != "" && strings.HasPrefix(r.URL.Path, broken) {
		answer(503, api.Problem{Status: 503, Code: "away", Detail: "it is away"})
		return
	}
	if problem != "" && (r.Method == http.MethodPost && r.URL.Path == "/v1/ops/jobs" || r.Method == http.MethodPut) {
		answer(409, api.Problem{Status: 409, Code: problem, Detail: "the plan is old"})
		return
	}
	if r.URL.Path == "/v1/notifications/"+fanned+"/timeline" {
		answer(422, api.Problem{Status: 422, Code: "index_missing", Detail: "this is a fan-out"})
		return
	}
	v := f.answers(r, body)
	if v == nil {
		answer(404, api.Problem{Status: 404, Code: "notification_not_found", Detail: "no such notification"})
		return
	}
	answer(200, v)
}

const (
	single  = "ntf_01KAJ8Q2T5E7V9XCB3M4N6P8RS"
	fanned  = "ntf_01KAJ8Q2T5E7V9XCB3M4N6P8RT"
	trigger = "trg_01KAJ8Q2T5E7V9XCB3M4N6P8RU"
	camp    = "cmp_01KAJ8Q2T5E7V9XCB3M4N6P8RV"
	jobID   = "job_01KAJ8Q2T5E7V9XCB3M4N6P8RW"
	digest  = "db6b9b5588b0607f26503c38b98a562d"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func (f *fake) answers(r *http.Request, body []byte) any {
	s, soon := f.text, noon.Add(time.Hour)
	status := api.Status{
		NotificationID: single, Status: "FAILED", Channel: "sms", Category: "alert", Caller: s, Campaign: camp, UserID: s, Attempts: 2, Code: s,
		AcceptedAt: noon, ExpiresAt: &soon, ScheduledAt: &soon,
	}
	letter := api.DeadLetter{
		NotificationID: single, Caller: s, Channel: "sms", Category: "alert", UserID: s, Template: s, Class: s, Code: s, Provider: s, Attempts: 2,
		State: "dead", FirstFailedAt: noon, LastFailedAt: noon, KeptUntil: &soon, Job: jobID, Extra: map[string]any{s: s},
	}
	summary := api.Summary{NotificationID: fanned, CampaignID: "", Caller: s, Channel: "push", Category: "digest", CreatedAt: noon, Accepted: 5, Counts: map[string]int{"SENT": 3, "FAILED": 2}, Counted: 5, Complete: true}
	job := api.Job{
		ID: jobID, Kind: "replay", Name: s, State: "running", Why: s, By: s, Approved: s, Context: s, Reason: s, Digest: digest,
		Spec: api.JobSpec{Kind: "replay", Filter: api.LetterFilter{Caller: s}, Rate: 50}, Planned: 10, Position: 4, Done: 3, Skipped: map[string]int{s: 1}, Created: noon.UnixMilli(), Updated: noon.UnixMilli(),
	}
	switch path := r.URL.Path; path {
	case "/v1/ops/rates":
		if f.cluster {
			return api.Rates{Processes: []api.ProcessRates{
				{Process: api.Process{Name: "front", State: api.ProcessReady, Roles: []string{"api", "operator"}, StartedAt: noon}},
				{Process: api.Process{Name: "mails", State: api.ProcessMissing, Roles: []string{"worker:email"}, Host: "host-2", AgeSeconds: 41}},
				{Process: api.Process{Name: "pushes", State: api.ProcessReady, StartedAt: noon}, Rates: []api.Rate{{What: "push", Reached: 777}}},
			}}
		}
		return api.Rates{OverSeconds: 60, Rates: []api.Rate{{What: "push", Accepted: 1234.5, Reached: 12.34, Failed: 0.5}}, Late: []api.Lateness{{What: "timer", N: 5, P50: .001, P99: .05}},
			Series: []api.RatePoint{{At: noon, Accepted: 1}, {At: noon, Accepted: 5, Ended: 3}}}
	case "/v1/ops/lag":
		return map[string]any{"items": []api.GroupLag{{Group: s, Topic: s, Lag: 12, InFlight: 3, Paused: 1, Deferred: []api.Deferred{{Reason: s, Receivers: 2990}, {Reason: "quiet_hours", Receivers: 7}}}}}
	case "/v1/ops/doctor":
		if f.cluster {
			return map[string]any{"items": []api.Finding{{Check: "circuit apns", Process: "pushes", Level: "warn", Detail: "open"}}}
		}
		return map[string]any{"items": []api.Finding{{Check: "store", Level: "ok", Detail: s}, {Check: s, Level: "warn", Detail: s, Repair: s}, {Check: "log", Level: "fail", Detail: s}}}
	case "/v1/ops/circuits":
		if f.cluster {
			return api.Circuits{Items: []api.Circuit{{Name: "provider:apns", Process: "front", State: "open"}, {Name: "provider:apns", Process: "pushes", State: "open"}}}
		}
		return api.Circuits{Items: []api.Circuit{{Name: "caller:" + s, State: "open", Pinned: true, Since: &soon}, {Name: "provider:twilio", State: "half-open", Reason: "errors", Code: "twilio_20429", Since: &soon, Until: &soon, Limit: 100}, {Name: "provider:sendgrid", State: "closed"}, {Name: "provider:apns", State: "closed"}}}
	case "/v1/ops/circuits/caller:" + s:
		return api.Circuit{Name: "caller:" + s, State: "open", Pinned: true}
	case "/v1/ops/lanes":
		return api.Lanes{Items: []api.Lane{{Name: "push"}, {Name: "push-bulk", Paused: true, Since: &soon, By: s, Reason: s, Lag: 7}, {Name: "sms", Stands: s}}}
	case "/v1/ops/lanes/push", "/v1/ops/lanes/push-bulk":
		return api.Lane{Name: "push", Paused: true}
	case "/v1/ops/callers":
		return api.Callers{Items: []api.Caller{{ID: s, Rate: 5, Burst: 9, Disabled: true, CallbackURLs: []string{"https://" + s}}}}
	case "/v1/schedules":
		return api.ScheduledPage{Items: []api.Scheduled{{NotificationID: single, Status: "SCHEDULED", Channel: "push", Caller: s, UserID: s, Receivers: 1, ScheduledAt: soon}}, Cursor: "more" + s}
	case "/v1/campaigns":
		return api.CampaignPage{Items: []api.Campaign{{CampaignID: camp, Caller: s, CreatedAt: noon, Parts: 2, Accepted: 3, Hold: &api.CampaignHold{Paused: true, Rate: 50, By: s, Reason: s}}}, Cursor: "more" + s}
	case "/v1/ops/suppressions":
		return api.Suppressions{Items: []api.Suppression{{UserID: s, Channel: "sms", Address: "+49" + s, Code: s}}, Cursor: "more" + s}
	case "/v1/ops/suppressions:lift":
		return api.SuppressionLifted{Address: "+49" + s, Lifted: 1}
	case "/v1/ops/accounts":
		return api.Accounts{Items: []api.Account{{Provider: "twilio", Account: s, State: "blocked", BlockedUntil: &soon, Reason: s}, {Provider: "sendgrid", Account: "pool", State: "open", ProbeAt: &soon}, {Provider: "twilio", Account: "ok", State: "closed", Room: 100}}}
	case "/v1/ops/dead-letters":
		page := api.DeadLetterPage{Items: []api.DeadLetter{letter}}
		if r.URL.Query().Get("cursor") == "" {
			page.Cursor = "more" + s
		}
		return page
	case "/v1/ops/dead-letters:top":
		return api.LetterTop{Total: 3, EndsSoon: 1, Next: soon.UnixMilli(), Callers: map[string]int{s: 3}, Groups: []api.LetterGroup{{
			Channel: "sms", Provider: s, Class: s, Code: s, Template: s, Count: 3, LastHour: 2, HourAgo: 1, Last: noon.UnixMilli(), Callers: map[string]int{s: 3}, Sample: single,
		}}}
	case "/v1/ops/dead-letters/" + single:
		return letter
	case "/v1/ops/plans":
		var spec api.JobSpec
		_ = json.Unmarshal(body, &spec)
		spec.UpTo = 77
		return api.Plan{Spec: spec, Digest: digest, Entries: 12, Send: 9, Skip: map[string]int{s: 3}, Counts: map[string]map[string]int{"caller": {s: 12}, "code": {s: 12}}, EtaMs: 180, EndsSoon: 1}
	case "/v1/ops/jobs":
		if r.Method == http.MethodPost {
			return job
		}
		if f.noJobs {
			return map[string]any{"items": []api.Job{}}
		}
		return map[string]any{"items": []api.Job{job}}
	case "/v1/ops/jobs/" + jobID:
		return job
	case "/v1/ops/jobs/" + jobID + "/report":
		return map[string]any{"items": []any{map[string]string{"id": single, "result": s, "why": s}, map[string]string{"else": s}}, "next": 0}
	case "/v1/ops/audit":
		return map[string]any{"items": []api.AuditRow{{Seq: 9, Hash: "0123456789ab", At: noon, Actor: s, Action: s, Target: s, Context: s, Reason: s, Result: s}, {Seq: 10, Hash: "0123456789ab", At: noon, Actor: "sre", Action: "job", Counts: map[string]int{s: 1}},
			{Seq: 11, Hash: "0123456789ab", At: noon, Actor: "sre", Action: "lane.pause", Target: "sms", Request: "r1", Set: json.RawMessage(`{"paused":true}`)},
			{Seq: 12, Hash: "0123456789ab", At: noon, Actor: "sre", Action: "lane.pause", Target: "smss", Request: "r2"},
			{Seq: 13, Hash: "0123456789ab", At: noon, Actor: "sre", Action: "lane.pause", Target: "smss", Request: "r2", Result: "refused: lane_not_found"}}}
	case "/v1/schedules/forecast":
		return api.Forecast{From: noon, To: soon, Total: 12, Complete: true, Minutes: []api.ForecastMinute{{Minute: noon.Add(time.Minute), What: "push", Count: 9}, {Minute: noon.Add(time.Minute), What: "trigger", Count: 2}, {Minute: noon.Add(5 * time.Minute), What: "sms", Count: 1}}}
	case "/v1/notifications":
		if r.URL.Query().Get("status") == "UNKNOWN" {
			return api.UserHistory{Items: []api.Status{}, Cursor: "more" + s}
		}
		return api.UserHistory{Items: []api.Status{status}, Cursor: "more" + s}
	case "/v1/notifications/" + single + "/timeline":
		return api.Timeline{Status: status, Next: s, Events: []api.TimelineEvent{
			{At: &noon, Type: "accepted", State: "ACCEPTED", Detail: s}, {Type: "claimed", Epoch: 1}, {At: &soon, Type: "attempt", State: "FAILED", Attempt: 1, Addresses: 2, Provider: s, Code: s, ProviderMessageID: s, Until: &soon},
		}}
	case "/v1/notifications/" + fanned:
		return summary
	case "/v1/notifications/" + fanned + "-0/timeline":
		status.NotificationID = fanned + "-0"
		return api.Timeline{Status: status}
	case "/v1/campaigns/" + camp:
		pending := int64(1234)
		summary.CampaignID, summary.Parts, summary.Rejected, summary.Pending = camp, 3, 1, &pending
		return summary
	case "/v1/triggers/" + trigger:
		return api.TriggerStatus{TriggerID: trigger, Status: "FAILED", Caller: s, CallbackURL: "https://shop.example/" + s, CreatedAt: noon, FireAt: noon, NextAttemptAt: &soon, EndedAt: &soon, Reason: s, Next: s,
			Log: []api.TriggerAttempt{{N: 1, At: noon, TookMS: 12.5, Status: 500, Class: s, Detail: s, Body: s}}}
	}
	if strings.HasPrefix(r.URL.Path, "/v1/users/") {
		return api.UserHistory{Items: []api.Status{status}, Cursor: "next"}
	}
	return nil
}

func (f *fake) posts() (out []asked) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.asked {
		if a.method != http.MethodGet && a.path != "/v1/ops/plans" && !strings.HasPrefix(a.path, "/v1/ops/dead-letters:top") {
			out = append(out, a)
		}
	}
	return out
}

func (f *fake) count(prefix string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.asked {
		if strings.HasPrefix(a.path, prefix) {
			n++
		}
	}
	return n
}

// site is a page over a fake, and a browser's cookies.
type site struct {
	*testing.T
	page    *Page
	api     *fake
	now     time.Time
	users   map[string]User // by token
	cookies map[string]*http.Cookie
	secure  bool
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, api: &fake{text: "shop"}, now: noon, cookies: map[string]*http.Cookie{}, users: map[string]User{
		"writer": {"sre", true, true}, "viewer": {"viewer", true, false}, "nobody": {"shop", false, false},
	}}
	s.page = s.process(testKey)
	return s
}

// testKey is the key of the page's sessions.
var testKey = bytes.Repeat([]byte("k"), 32)

// process returns the page of one more process behind the same address.
func (s *site) process(key []byte) *Page {
	s.Helper()
	p, err := New(Config{
		API: s.api, Key: key, Now: func() time.Time { return s.now },
		Verify: func(_ context.Context, token string) (User, error) {
			if u, ok := s.users[token]; ok {
				return u, nil
			}
			if token == "away" {
				return User{}, notify.Unavailable("jwks", 0, nil)
			}
			return User{}, &notify.Error{Kind: notify.KindUnauthorized, Code: "token_signature", Msg: "the token's signature or algorithm is not accepted"}
		},
	})
	if err != nil {
		s.Fatal(err)
	}
	return p
}

type option func(*http.Request)

func header(k, v string) option { return func(r *http.Request) { r.Header.Set(k, v) } }

// do sends a request with the cookies, and keeps those that come back.
func (s *site) do(method, target string, form url.Values, opts ...option) *httptest.ResponseRecorder {
	s.Helper()
	r := httptest.NewRequestWithContext(s.Context(), method, target, strings.NewReader(form.Encode()))
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if s.secure {
		r.TLS = httptest.NewRequestWithContext(s.Context(), "GET", "https://x/", nil).TLS
	}
	for _, c := range s.cookies {
		r.AddCookie(c)
	}
	for _, o := range opts {
		o(r)
	}
	w := httptest.NewRecorder()
	s.page.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		if c.MaxAge < 0 {
			delete(s.cookies, c.Name)
		} else {
			s.cookies[c.Name] = c
		}
	}
	return w
}

func (s *site) get(target string, opts ...option) *httptest.ResponseRecorder {
	s.Helper()
	return s.do("GET", target, nil, opts...)
}

// field is the value of a hidden input of a page.
func (s *site) field(page, name string) string {
	s.Helper()
	for n := range parse(s.T, page).Descendants() {
		if n.Data == "input" && attr(n, "name") == name {
			return attr(n, "value")
		}
	}
	s.Fatalf("no field %s", name)
	return ""
}

func (s *site) signIn(token string) *httptest.ResponseRecorder {
	s.Helper()
	form := s.get("/ui/sign-in").Body.String()
	return s.do("POST", "/ui/sign-in", url.Values{"token": {token}, "csrf": {s.field(form, "csrf")}, "next": {"/ui/jobs"}})
}

func parse(t *testing.T, page string) *html.Node {
	t.Helper()
	n, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// pages are all that can be looked at.
var pages = []string{
	"/ui/", "/ui/failures", "/ui/circuits", "/ui/dead-letters", "/ui/dead-letters?caller=x&since=-24h&state=any", "/ui/plan?kind=replay&caller=shop",
	"/ui/plan?kind=discard&code=x", "/ui/plan?kind=replay", "/ui/plan?kind=replay&all=1", "/ui/jobs", "/ui/jobs/" + jobID, "/ui/suppressions", "/ui/suppressions?user_id=ann&channel=sms&code=x&address=y", "/ui/lanes", "/ui/schedules", "/ui/schedules?status=SCHEDULED&user=ann&caller=shop", "/ui/campaigns", "/ui/campaigns?caller=shop", "/ui/callers", "/ui/forecast", "/ui/audit", "/ui/audit?before=9",
	"/ui/id/" + single, "/ui/id/" + fanned, "/ui/id/" + trigger, "/ui/id/" + camp, "/ui/users/ann",
}
