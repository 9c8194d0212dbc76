package app

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestPausedLane: messages for a paused lane wait in the log, across a restart, while other lanes
// continue. They are delivered when the lane is resumed.
func TestPausedLane(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	l := run(t, cfg, quick)
	ctx := t.Context()
	if _, err := l.client.SetLane(ctx, "pull", true, ""); notify.KindOf(err) != notify.KindNotFound {
		t.Errorf("a lane there is not: %v", err)
	}
	for _, lane := range []string{"push", "email", "sms"} {
		got, err := l.client.SetLane(ctx, lane, true, "a bad template")
		if err != nil || !got.Paused || got.By != "test" || got.Reason != "a bad template" || got.Since == nil {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	send := func(n api.Notification) string {
		t.Helper()
		sent, err := l.client.Send(ctx, n, "")
		if err != nil {
			t.Fatal(err)
		}
		return sent.NotificationID
	}
	text := push("ann", "x")
	text.Content.Title = ""
	text.Channel, text.Category, text.To.Address = "sms", "otp", "+4915112345678"
	mail := push("ann", "x")
	mail.Channel, mail.To.Address = "email", "ann@example.com"
	waiting := []string{send(push("ann", "x")), send(text), send(mail)}
	res, err := l.client.Fanout(ctx, fanout(2500), "")
	if err != nil {
		t.Fatal(err)
	}
	bulk := push("ann", "bulk")
	bulk.Category = "marketing"
	l.becomes(t, send(bulk), "DELIVERED") // another lane

	nothing := func() {
		t.Helper()
		eventually(t, "the lane's records are with its workers", func() bool {
			for _, g := range l.groups.lags() {
				if g.Group == "sms-workers" && g.InFlight == 1 {
					return true
				}
			}
			return false
		})
		rep := l.audited(t)
		if rep.Drift != 0 || rep.Waiting["log"] != 2503 || rep.Terminal != 1 {
			t.Errorf("waiting %v, terminal %d, drift %d", rep.Waiting, rep.Terminal, rep.Drift)
		}
		for i, id := range waiting {
			line, err := l.client.Timeline(ctx, id)
			if err != nil || !strings.Contains(line.Next, " until the lane is resumed: test paused ") || !strings.Contains(line.Next, "(a bad template)") {
				t.Errorf("%d: %q, %v", i, line.Next, err)
			}
		}
	}
	nothing()
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	l = run(t, cfg, quick)
	nothing()
	ls, err := l.client.Lanes(ctx)
	if err != nil || len(ls.Items) != 6 || !ls.Items[0].Paused || ls.Items[3].Paused {
		t.Errorf("%+v, %v", ls, err)
	}
	for _, lane := range []string{"push", "email", "sms"} {
		if got, err := l.client.SetLane(ctx, lane, false, ""); err != nil || got.Paused {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	for _, id := range waiting {
		want := "SENT"
		if id == waiting[0] {
			want = "DELIVERED"
		}
		eventually(t, id+" ends", func() bool {
			st, err := l.client.Notification(ctx, id)
			return err == nil && (st.Status == want || st.Status == "DELIVERED")
		})
	}
	l.delivered(t, res.FirstID, 2500)
	acts, err := l.client.Audit(ctx, nil, 50)
	if err != nil || len(acts) < 6 || acts[0].Action != "lane.pause" {
		t.Errorf("%d rows of the audit log, %v", len(acts), err)
	}
}
