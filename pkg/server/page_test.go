package server

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
)

// TestPage: the page is under /ui/ and asks the API itself, as anybody would.
func TestPage(t *testing.T) {
	t.Parallel()
	w, _ := matrixWorld()
	var inside http.Handler
	s := w.start(t, Config{}, func(d *Deps) {
		d.Page = func(of http.Handler) http.Handler {
			inside = of
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/ui/panic" {
					panic("of the page")
				}
				w.WriteHeader(http.StatusTeapot)
				_, _ = io.WriteString(w, r.Method+" "+r.URL.Path)
			})
		}
	})
	for _, m := range []string{"GET", "POST"} {
		if got := ask(s, m, "/ui/jobs", "", ""); got.status != http.StatusTeapot || got.body != m+" /ui/jobs" || got.header.Get("X-Request-Id") == "" {
			t.Errorf("%d %s %v", got.status, got.body, got.header)
		}
	}
	if got := ask(s, "GET", "/ui/panic", "", ""); got.status != 500 || !strings.Contains(got.body, "internal") {
		t.Errorf("%d %s", got.status, got.body)
	}
	// A browser at the root is led there, a program is told that there is nothing.
	root, err := http.NewRequestWithContext(t.Context(), "GET", "http://notifyd/", nil)
	if err != nil {
		t.Fatal(err)
	}
	root.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	at := &heard{header: http.Header{}}
	inside.ServeHTTP(at, root)
	if at.status != http.StatusSeeOther || at.header.Get("Location") != "/ui/" {
		t.Errorf("%d %v", at.status, at.header)
	}
	if got := ask(s, "GET", "/", "", ""); got.status != 404 || !strings.Contains(got.body, "route_not_found") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if inside == nil {
		t.Fatal("the page was not given the API")
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://notifyd/v1/ops/circuits", nil)
	if err != nil {
		t.Fatal(err)
	}
	rec := &heard{header: http.Header{}}
	inside.ServeHTTP(rec, r)
	if rec.status != 401 {
		t.Errorf("without a token: %d", rec.status)
	}
	// Those of the page take no room of callers, and end by themselves.
	s.places[classPage].underWay.Add(maxPages)
	if got := ask(s, "GET", "/ui/", "", ""); got.status != 503 {
		t.Errorf("one page too many: %d", got.status)
	}
	if got := ask(s, "GET", "/v1/ops/dead-letters", token(t, "sre", api.ScopeObserve), ""); got.status != 200 {
		t.Errorf("the API beside them: %d %s", got.status, got.body)
	}
	s.places[classPage].underWay.Add(-maxPages)
	if n := s.places[classPage].underWay.Load(); n != 0 {
		t.Errorf("%d pages are left", n)
	}
	without := w.start(t, Config{}, nil)
	if got := ask(without, "GET", "/ui/", "", ""); got.status != 404 {
		t.Errorf("without a page: %d", got.status)
	}
}

type heard struct {
	header http.Header
	status int
}

func (h *heard) Header() http.Header         { return h.header }
func (h *heard) Write(b []byte) (int, error) { return len(b), nil }
func (h *heard) WriteHeader(status int)      { h.status = status }

// TestObserve: an operator who looks sees what any caller sees, and changes
// nothing of it.
func TestObserve(t *testing.T) {
	t.Parallel()
	w, paths := matrixWorld()
	s := w.start(t, Config{}, func(d *Deps) { d.Callers = w.later.Callers() })
	w.schedule(t, scheduledBase, "owner", false)
	w.hooked(t, "owner")
	trg := w.trigger(t, "owner")
	looks := token(t, "viewer", api.ScopeObserve)
	for _, path := range []string{"/v1/notifications/{id}", "/v1/notifications/{id}/timeline", "/v1/campaigns/{id}", "/v1/users/{id}/notifications", "/v1/triggers/" + trg, "/v1/schedules?caller=owner"} {
		if got := ask(s, "GET", paths.Replace(path), looks, ""); got.status != 200 || !strings.Contains(got.body, "owner") {
			t.Errorf("GET %s: %d %s", path, got.status, got.body)
		}
	}
	// Not even with the scopes of a caller: those are for its own.
	looks = token(t, "viewer", api.ScopeObserve, api.ScopeSend, api.ScopeTrigger, api.ScopeRead)
	for _, rq := range []string{"DELETE /v1/notifications/{id}", "DELETE /v1/campaigns/{id}", "DELETE /v1/triggers/" + trg, "PATCH /v1/triggers/" + trg, "PATCH /v1/notifications/ntf_" + scheduledBase.String()} {
		method, path, _ := strings.Cut(rq, " ")
		body := ""
		if method == "PATCH" {
			body = `{"scheduled_at":"2027-01-16T10:00:00Z"}`
			if strings.Contains(path, "triggers") {
				body = `{"delay_seconds":60}`
			}
		}
		if got := ask(s, method, paths.Replace(path), looks, body); got.status != 404 {
			t.Errorf("%s: %d %s", rq, got.status, got.body)
		}
	}
}
