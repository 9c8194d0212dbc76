package app

import (
	"slices"
	"testing"

	"github.com/notifyd/notifyd/pkg/log"
)

// TestLanesThatAreNotBulkReadFromLeaders: all groups tell the brokers their rack, except the groups
// of the lanes that are not bulk.
func TestLanesThatAreNotBulkReadFromLeaders(t *testing.T) {
	t.Parallel()
	var leaders []string
	for group := range topicsOf {
		switch got := connOf(group, log.Conn{Brokers: []string{"b:1"}, Rack: "a"}); {
		case got.Rack == "":
			leaders = append(leaders, group)
		case got.Rack != "a" || got.Brokers[0] != "b:1":
			t.Errorf("%s reads from %s", group, got)
		}
	}
	slices.Sort(leaders)
	if want := []string{"email-retry-workers", "email-workers", "push-retry-workers", "push-workers", "sms-retry-workers", "sms-workers"}; !slices.Equal(leaders, want) {
		t.Errorf("from leaders read %v, want %v", leaders, want)
	}
}
