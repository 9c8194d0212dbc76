package app

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestMigrateRaisesTimerShards: migrate says what it would raise, and raises it. Processes start
// that are configured with the number before the raise, with the number after it, and with a number
// that was not raised to yet.
func TestMigrateRaisesTimerShards(t *testing.T) {
	t.Parallel()
	ctx, meta := t.Context(), memory.New().Meta()
	cfg := DefaultFor(EnginesDistributed)
	now := time.Now()
	for _, c := range []struct {
		shards  int
		to      engine.Direction
		step    string
		applied bool
	}{
		{16, engine.Look, "timer_shards", false},
		{16, engine.Up, "timer_shards 16", true},
		{64, engine.Look, "timer_shards from 16 to 64", false},
		{64, engine.Up, "timer_shards 64", true},
		{64, engine.Up, "timer_shards 64", true},
		{16, engine.Look, "timer_shards 64", true},
	} {
		cfg.Timers.Shards = c.shards
		ms, err := metaRows(ctx, meta, &cfg, c.to, now)
		if err != nil || len(ms) != 2 || ms[1].Step != c.step || ms[1].Applied != c.applied {
			t.Errorf("%s to %d: %+v, %v; want %q", c.to, c.shards, ms, err, c.step)
		}
	}
	cfg.Timers.Shards = 65
	if _, err := metaRows(ctx, meta, &cfg, engine.Up, now); notify.KindOf(err) != notify.KindConflict || !strings.Contains(err.Error(), "to 64 takes effect at ") {
		t.Errorf("raised twice at once: %v", err)
	}
	cfg.Timers.Shards = 8
	for _, to := range []engine.Direction{engine.Look, engine.Up} {
		if _, err := metaRows(ctx, meta, &cfg, to, now); notify.KindOf(err) != notify.KindInvalid || !strings.Contains(err.Error(), "set it to 64") {
			t.Errorf("%s to 8, which never was: %v", to, err)
		}
	}
	for shards, want := range map[int]string{16: "", 64: "", 256: "migrate up", 8: "is 8, but"} {
		var out bytes.Buffer
		cfg.Timers.Shards = shards
		_, err := openShards(ctx, meta, &cfg, slog.New(slog.NewTextHandler(&out, nil)))
		said := out.String()
		if e, ok := errors.AsType[*notify.Error](err); ok {
			said = e.Msg
		}
		if (said != "") != (want != "") || !strings.Contains(said, want) || (err != nil) != (shards == 8) {
			t.Errorf("a start with %d: %q, %v", shards, said, err)
		}
	}
}

// The topic prefix of an installation stays as it was at the first migrate up.
func TestTopicPrefixStays(t *testing.T) {
	t.Parallel()
	ctx, meta := t.Context(), memory.New().Meta()
	cfg := DefaultFor(EnginesDistributed)
	for _, c := range []struct {
		prefix string
		to     engine.Direction
		ok     bool
	}{
		{"red.", engine.Look, true}, {"red.", engine.Up, true}, {"red.", engine.Up, true},
		{"blue.", engine.Look, false}, {"", engine.Up, false}, {"red.", engine.Look, true},
	} {
		cfg.Kafka.TopicPrefix = c.prefix
		_, err := metaRows(ctx, meta, &cfg, c.to, time.Now())
		if (err == nil) != c.ok || err != nil && (notify.KindOf(err) != notify.KindInvalid || !strings.Contains(err.Error(), `"red."`)) {
			t.Errorf("%q to %v: %v", c.prefix, c.to, err)
		}
	}
	// An installation from before there were prefixes has none.
	old := memory.New().Meta()
	if err := old.PutMeta(ctx, storeIDMeta, []byte("id")); err != nil {
		t.Fatal(err)
	}
	if err := checkTopicPrefix(ctx, old, &cfg); err == nil {
		t.Error("a prefix for topics that have none")
	}
	cfg.Kafka.TopicPrefix = ""
	if err := checkTopicPrefix(ctx, old, &cfg); err != nil {
		t.Error(err)
	}
}
