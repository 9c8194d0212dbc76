package app

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestMigrateRaisesPartitions: migrate says what it would raise, and raises it. First it stores how
// many partitions there were, then it makes the new ones, and then it stores the time from which
// they count. Processes start before and after that, and spread users as the row says.
func TestMigrateRaisesPartitions(t *testing.T) {
	t.Parallel()
	ctx, cfg := t.Context(), DefaultFor(EnginesDistributed)
	cfg.Log.Partitions = map[string]int{"push": 3, "sms": 2, "email": 2}
	s := newShared(t, &cfg)
	meta := s.store.Meta()
	admin, err := log.NewAdmin(log.AdminConfig{Conn: log.Conn{Brokers: []string{s.broker.Addr()}, Dial: s.broker.Dial}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	now := time.Now()
	topics := []string{"notifications-push", "notifications-push-bulk", "notifications-push-dlq", "notifications-push-bulk-dlq"}
	for _, c := range []struct {
		push    int
		to      engine.Direction
		step    string
		applied bool
		made    int
	}{
		{6, engine.Look, "log_partitions_push", false, 3},
		{3, engine.Up, "log_partitions_push 3", true, 3},
		{6, engine.Look, "log_partitions_push from 3 to 6", false, 3},
		{6, engine.Up, "log_partitions_push 6", true, 6},
		{6, engine.Up, "log_partitions_push 6", true, 6},
		{3, engine.Up, "log_partitions_push 6", true, 6},
	} {
		cfg.Log.Partitions["push"] = c.push
		ms, err := raisePartitions(ctx, meta, admin, &cfg, c.to, now)
		if err != nil || len(ms) != 3 || ms[0].Step != c.step || ms[0].Applied != c.applied {
			t.Errorf("%v to %d: %+v, %v; want %q", c.to, c.push, ms, err, c.step)
		}
		have, err := admin.Partitions(ctx, topics...)
		for _, topic := range topics {
			if err != nil || have[topic] != c.made {
				t.Errorf("%v to %d: %s has %d partitions, want %d; %v", c.to, c.push, topic, have[topic], c.made, err)
			}
		}
	}
	cfg.Log.Partitions["push"] = 9
	_, err = raisePartitions(ctx, meta, admin, &cfg, engine.Up, now)
	if e, ok := errors.AsType[*notify.Error](err); !ok || e.Kind != notify.KindInvalid || e.Field != "log.partitions.push" {
		t.Errorf("no multiple: %v", err)
	}

	var out bytes.Buffer
	cfg.Log.Partitions["push"] = 12
	n := &Node{cfg: cfg, servers: &servers{}, admin: admin, log: slog.New(slog.NewTextHandler(&out, nil))}
	parts, err := openPartitions(ctx, meta, admin)
	if err != nil {
		t.Fatal(err)
	}
	usePartitions(n, parts)
	if !strings.Contains(out.String(), "migrate up") || strings.Contains(out.String(), "sms") {
		t.Errorf("a start with more than there are says %q", &out)
	}
	for topic, want := range map[string]int{"notifications-push": 3, "notifications-sms": 2, "notifications-push-dlq": 0, "triggers-dlq": 0} {
		if got, err := n.st.partitions(topic); err != nil || got != want { // the raise counts in a minute
			t.Errorf("%s: keys over %d, %v; want %d", topic, got, err, want)
		}
	}
	if got := n.st.spread("notifications-push-bulk"); got.Most() != 6 || got.PartsAt(now) != 3 || got.PartsAt(now.Add(2*time.Minute)) != 6 {
		t.Errorf("the spread is %s", got)
	}
	if err := meta.PutMeta(ctx, partitionsMeta(notify.SMS), []byte("2,4@1")); err != nil {
		t.Fatal(err)
	}
	if _, err := openPartitions(ctx, meta, admin); notify.KindOf(err) != notify.KindConflict || !strings.Contains(err.Error(), "from 2 to 3") {
		t.Errorf("partitions that are missing: %v", err)
	}
}
