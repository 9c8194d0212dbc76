package app

import (
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
)

// Notifications of a paused campaign wait, across a restart, while others are sent.
func TestPausedCampaign(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	l := run(t, cfg, quick)
	ctx := t.Context()
	part := func(n uint32) {
		t.Helper()
		f := fanout(100)
		f.Campaign, f.Part = "cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C", n
		if _, err := l.client.Fanout(ctx, f, ""); err != nil {
			t.Fatal(err)
		}
	}
	counts := func() map[string]int {
		t.Helper()
		sum, err := l.client.Campaign(ctx, "cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C", api.Page{})
		if err != nil {
			t.Fatal(err)
		}
		return sum.Counts
	}
	part(0)
	eventually(t, "the first part is delivered", func() bool { return counts()["DELIVERED"] == 100 })
	yes, no := true, false
	if h, err := l.client.SetCampaign(ctx, "cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C", api.CampaignChange{Paused: &yes, Reason: "a slow shop"}); err != nil || !h.Paused || h.By != "test" {
		t.Fatalf("%+v, %v", h, err)
	}
	part(1)
	eventually(t, "the second part is put off", func() bool { return counts()["DEFERRED"] == 100 })
	sent, err := l.client.Send(ctx, push("ann", "x"), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, sent.NotificationID, "DELIVERED")
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	l = run(t, cfg, quick)
	part(2)
	eventually(t, "so is the third, after a restart", func() bool { return counts()["DEFERRED"] == 200 })
	if h, err := l.client.SetCampaign(ctx, "cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C", api.CampaignChange{Paused: &no}); err != nil || h.Paused {
		t.Fatalf("%+v, %v", h, err)
	}
	part(3)
	eventually(t, "what comes after the pause is delivered", func() bool { return counts()["DELIVERED"] == 200 })
}
