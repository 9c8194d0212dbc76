package app

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// over makes a Pebble store in dir, which then has the tables of s.
func (s *shared) over(t *testing.T, dir string) *pebble.Store {
	t.Helper()
	p, err := pebble.Open(pebble.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	s.store = &memory.Store{Contracts: p.Contracts}
	return p
}

func isCode(err error, code string) bool {
	e, ok := errors.AsType[*notify.Error](err)
	return ok && e.Code == code
}

// TestRestoreServers: the tables are put back to a snapshot. Work that was done before the snapshot
// is not done again. Notifications that were accepted after it get their outcome again.
func TestRestoreServers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cfg := sharing(t)
	s := newShared(t, &cfg)
	dir := t.TempDir()
	tables := s.over(t, filepath.Join(dir, "tables"))
	if err := s.store.Meta().PutMeta(ctx, storeIDMeta, []byte("shared")); err != nil {
		t.Fatal(err)
	}
	called := &tallied{calls: map[string]int{}}
	seam := seams{servers: s.open, provider: called.wrap, settle: 1200 * time.Millisecond}
	n := runAs(t, "all", cfg, seam)
	send := func(n *life, key string) string {
		t.Helper()
		sent, err := n.client.Send(ctx, push(key, "hello"), key)
		if err != nil {
			t.Fatal(err)
		}
		n.becomes(t, sent.NotificationID, "DELIVERED")
		return sent.NotificationID
	}
	before := send(n, "before")
	eventually(t, "the group has committed", func() bool {
		lags, err := n.groups.readLags(ctx)
		return err == nil && !slices.ContainsFunc(lags, func(l api.GroupLag) bool { return l.Lag > 0 })
	})
	if err := writeCheckpoint(ctx, n.admin, s.store.Meta(), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	taken := time.Now().Add(checkpointMargin)
	if err := tables.Checkpoint(filepath.Join(dir, "snapshot")); err != nil {
		t.Fatal(err)
	}
	past := &recorded{chunks: slices.Clone(s.past.chunks)}
	after := send(n, "after")
	other := restorer{admin: n.admin, meta: s.store.Meta(), beats: s.beats, purgeKeys: s.store.Idem().Purge}
	if _, err := other.run(ctx, taken, false); !isCode(err, "cluster_running") {
		t.Errorf("while a process works: %v", err)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}

	s.over(t, filepath.Join(dir, "snapshot"))
	s.past = past
	admin, err := log.NewAdmin(log.AdminConfig{Conn: log.Conn{Brokers: []string{s.broker.Addr()}, Dial: s.broker.Dial}})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	r := restorer{admin: admin, meta: s.store.Meta(), beats: s.beats, purgeKeys: s.store.Idem().Purge}
	if _, err := r.run(ctx, taken.Add(-time.Hour), false); !isCode(err, "no_checkpoint") {
		t.Errorf("a snapshot from before every checkpoint: %v", err)
	}
	got, err := r.run(ctx, taken, false)
	if err != nil {
		t.Fatal(err)
	}
	again := map[string]int64{}
	for _, g := range got.Groups {
		if g.Again > 0 {
			again[g.Group] = g.Again
		}
	}
	want := map[string]int64{"push-workers": 1, "history-writers": 1}
	if !maps.Equal(again, want) || got.Keys != 1 || len(got.Missing) != 0 {
		t.Errorf("%+v: read again %v, want %v", got, again, want)
	}

	n = runAs(t, "all", cfg, seam)
	n.becomes(t, after, "DELIVERED")
	n.becomes(t, before, "DELIVERED")
	n.agrees(t, 2, 2, 0)
	called.mu.Lock()
	defer called.mu.Unlock()
	if called.calls[before] != 1 || called.calls[after] != 2 {
		t.Errorf("calls: %v", called.calls)
	}
}

// TestRestoredOffsets: groups continue at their positions, and whatever the log lacks is reported.
func TestRestoredOffsets(t *testing.T) {
	t.Parallel()
	const group = "push-workers"
	topic := topicsOf[group][0]
	tp := func(p int32) log.TopicPartition { return log.TopicPartition{Topic: topic, Partition: p} }
	at := func(offsets ...int64) positions {
		out := positions{}
		for p, offset := range offsets {
			out.put(group, topic, int32(p), offset)
		}
		return out
	}
	for name, c := range map[string]struct {
		was, newest  positions
		id           string // noted
		starts, ends []int64
		want         []int64
		missing      string // part of the only line; empty: nothing is missing
	}{
		"as it stood":                 {at(7, 0), at(9, 3), "a", []int64{2, 0}, []int64{10, 4}, []int64{7, 0}, ""},
		"nothing was read yet":        {at(), at(), "a", []int64{0}, []int64{5}, []int64{0}, ""},
		"begins at its position":      {at(7), at(7), "a", []int64{7}, []int64{7}, []int64{7}, ""},
		"records were removed":        {at(7), at(9), "a", []int64{8}, []int64{10}, []int64{8}, "/0 begins at offset 8, but push-workers had read only up to 7"},
		"the log is older":            {at(7), at(7), "a", []int64{2}, []int64{6}, []int64{2}, "/0 ends at offset 6, but push-workers had read up to 7"},
		"the log is older than later": {at(7), at(12), "a", []int64{2}, []int64{11}, []int64{2}, "/0 ends at offset 11, but push-workers had read up to 12"},
		"another topic of the name":   {at(7), at(7), "b", []int64{0}, []int64{20}, []int64{0}, "was deleted and made again"},
	} {
		l := logState{ids: map[string]string{topic: "a"}, starts: map[log.TopicPartition]int64{}, ends: map[log.TopicPartition]int64{}}
		for p := range c.starts {
			l.starts[tp(int32(p))], l.ends[tp(int32(p))] = c.starts[p], c.ends[p]
		}
		noted := map[string]string{topic: c.id}
		to, missing := l.offsets(checkpoint{Topics: noted, Groups: c.was}, checkpoint{Topics: noted, Groups: c.newest})
		for p, want := range c.want {
			if got := to[group][tp(int32(p))]; got != want {
				t.Errorf("%s: partition %d goes on at %d, want %d", name, p, got, want)
			}
		}
		if (c.missing == "") != (len(missing) == 0) || len(missing) > 0 && !strings.Contains(fmt.Sprint(missing), c.missing) {
			t.Errorf("%s: missing %q, want %q", name, missing, c.missing)
		}
	}
}

// TestCheckpointsOfADay: a checkpoint overwrites the row of the checkpoint that was made a day
// before.
func TestCheckpointsOfADay(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_800_000_000, 0)
	names := map[string]bool{}
	for k := range checkpointsKept {
		names[checkpointName(at.Add(time.Duration(k)*checkpointEvery))] = true
	}
	if len(names) != checkpointsKept || checkpointName(at) != checkpointName(at.Add(24*time.Hour)) {
		t.Errorf("%d rows", len(names))
	}
}
