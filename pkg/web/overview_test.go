package web

import (
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
