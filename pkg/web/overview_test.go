package web

import (
	"slices"
	"strings"
	"testing"
)

// TestOverviewShowsWhatIsDeferred: deferred receivers are behind in no group. The
// overview shows their sum, and why they wait.
func TestOverviewShowsWhatIsDeferred(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.signIn("writer")
	body := s.get("/ui/").Body.String()
	for _, want := range []string{"records, 2,997 deferred", "quiet_hours 7"} {
		if !strings.Contains(body, want) {
			t.Errorf("the overview does not show %q", want)
		}
	}
}

// TestProcessesAreNamed: with several processes the overview lists them and says which did
// not answer, findings and circuits name theirs, and a circuit is offered once.
func TestProcessesAreNamed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.api.cluster = true
	s.signIn("writer")
	body := s.get("/ui/").Body.String()
	for _, want := range []string{"mails did not answer for 41s (worker:email on host-2)", "pushes</bdi>", "circuit apns of pushes", ">777<"} {
		if !strings.Contains(body, want) {
			t.Errorf("the overview does not show %q", want)
		}
	}
	page := s.get("/ui/circuits").Body.String()
	var cells, offered []string
	for n := range parse(t, page).Descendants() {
		switch {
		case n.Data == "option":
			offered = append(offered, text(n))
		case n.Data == "td" && attr(n, "data-label") == "Process":
			cells = append(cells, text(n))
		}
	}
	if !slices.Equal(cells, []string{"front", "pushes"}) || !slices.Equal(offered, []string{"provider:apns"}) {
		t.Errorf("processes %q, offered %q", cells, offered)
	}
}
