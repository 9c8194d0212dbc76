package app

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLostPositions: the file of the log that says how far groups have read was removed. The next
// start says so, names the groups, and sends nothing again. The start after that finds everything
// in order.
func TestLostPositions(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	cfg.Log.Partitions["push"] = 1
	a := run(t, cfg, seams{})
	var ids []string
	for i := range 5 {
		sent, err := a.client.Send(t.Context(), push(fmt.Sprint("user-", i), "body"), "")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sent.NotificationID)
	}
	for _, id := range ids {
		a.becomes(t, id, "DELIVERED")
	}
	if f := a.find(t, "positions"); len(f) != 1 || f[0].Level != "ok" {
		t.Errorf("before: %+v", f)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(cfg.DataDir, "log", "groups.log")); err != nil {
		t.Fatal(err)
	}

	b := run(t, cfg, seams{})
	f := b.find(t, "positions")
	if len(f) != 1 || f[0].Level != "fail" || !strings.Contains(f[0].Detail, "positions lost") ||
		!strings.Contains(f[0].Detail, "push-workers at notifications-push/0 (it stood at 5)") {
		t.Errorf("doctor says %+v", f)
	}
	if w := (views{b.Node}).warnings(); !slices.Contains(w, "positions_lost") {
		t.Errorf("warnings %v", w)
	}
	eventually(t, "the log is read again", func() bool { return b.stood("push-workers", "notifications-push") == 5 })
	for _, id := range ids {
		st, err := b.client.Notification(t.Context(), id)
		if err != nil || st.Status != "DELIVERED" || st.Attempts != 1 {
			t.Errorf("%+v, %v", st, err)
		}
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}

	c := run(t, cfg, seams{})
	if f := c.find(t, "positions"); len(f) != 1 || f[0].Level != "ok" {
		t.Errorf("the start after it: %+v", f)
	}
}

// stood returns the offset that a group has committed for partition 0 of a topic; -1: none.
func (l *life) stood(group, topic string) int64 {
	for i, g := range l.groups.list {
		for _, p := range g.Stats().Partitions {
			if l.groups.names[i] == group && p.TP.Topic == topic && p.TP.Partition == 0 {
				return p.Committed
			}
		}
	}
	return -1
}
