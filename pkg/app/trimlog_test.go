package app

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// sumOf returns the sum of the offsets of a topic.
func sumOf(of map[log.TopicPartition]int64, topic string) (sum int64) {
	for tp, at := range of {
		if tp.Topic == topic {
			sum += at
		}
	}
	return sum
}

// TestTrimsOnlyWhatIsRead: however old a record is, the log keeps it until every group that reads
// its topic has committed it. Then it is removed, except the last record of a partition.
func TestTrimsOnlyWhatIsRead(t *testing.T) {
	t.Parallel()
	cfg := sharing(t)
	cfg.Log.Partitions = map[string]int{"push": 1, "sms": 1, "email": 1}
	s := newShared(t, &cfg)
	n := runAs(t, "all", cfg, seams{servers: s.open})
	ctx := t.Context()
	lane, _ := notify.ParseLane("push")
	start := func() int64 {
		t.Helper()
		at, err := n.admin.StartOffsets(ctx, lane.Topic())
		if err != nil {
			t.Fatal(err)
		}
		return sumOf(at, lane.Topic())
	}
	// A year from now everything is older than kafka.keep.
	trim := func() {
		t.Helper()
		if err := n.groups.trimOnce(ctx, cfg.Kafka.Keep, time.Now().Add(365*24*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.client.SetLane(ctx, "push", true, "look"); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for i := range 10 {
		sent, err := n.client.Send(ctx, push(fmt.Sprintf("user-%d", i), "hello"), "")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sent.NotificationID)
	}
	eventually(t, "the history has read what was sent", func() bool {
		at, err := n.admin.Committed(ctx, history.WritersGroup)
		return err == nil && sumOf(at, lane.Topic()) == 10
	})
	trim()
	if at := start(); at != 0 {
		t.Fatalf("%d records were removed while their lane was paused", at)
	}
	if _, err := n.client.SetLane(ctx, "push", false, ""); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		n.becomes(t, id, "DELIVERED")
	}
	eventually(t, "the lane has committed", func() bool {
		at, err := n.admin.Committed(ctx, lane.Group())
		return err == nil && sumOf(at, lane.Topic()) == 10
	})
	if err := n.groups.trimOnce(ctx, cfg.Kafka.Keep, time.Now()); err != nil {
		t.Fatal(err)
	}
	if at := start(); at != 0 {
		t.Fatalf("%d records younger than kafka.keep were removed", at)
	}
	trim()
	if at := start(); at != 9 {
		t.Errorf("the log begins at %d of 10", at)
	}
	// Records that were trimmed after all groups had read them are no drift.
	rep, err := n.client.Conservation(ctx, time.Time{})
	if err != nil || rep.Drift != 0 || rep.Accepted != 10 || rep.Terminal != 10 {
		t.Errorf("%+v, %v", rep, err)
	}
}

// TestTrimWaitsForTheArchive: a record that every group has read stays until it is archived,
// but no longer than archive.wait.
func TestTrimWaitsForTheArchive(t *testing.T) {
	t.Parallel()
	cfg := sharing(t)
	cfg.Log.Partitions = map[string]int{"push": 1, "sms": 1, "email": 1}
	cfg.Archive.Dir = filepath.Join(t.TempDir(), "archive") // a new archive begins with records that are a day old
	n := runAs(t, "all", cfg, seams{servers: newShared(t, &cfg).open})
	ctx := t.Context()
	lane, _ := notify.ParseLane("push")
	for i := range 10 {
		if _, err := n.client.Send(ctx, push(fmt.Sprint("user-", i), "hello"), ""); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all groups have committed", func() bool {
		for _, group := range []string{lane.Group(), history.WritersGroup} {
			if at, err := n.admin.Committed(ctx, group); err != nil || sumOf(at, lane.Topic()) != 10 {
				return false
			}
		}
		return true
	})
	for _, c := range []struct {
		after  time.Duration
		begins int64
	}{{0, 0}, {n.cfg.Archive.Wait, 9}} {
		err := n.groups.trimOnce(ctx, cfg.Kafka.Keep, time.Now().Add(cfg.Kafka.Keep+c.after+time.Hour))
		at, err2 := n.admin.StartOffsets(ctx, lane.Topic())
		if err := errors.Join(err, err2); err != nil || sumOf(at, lane.Topic()) != c.begins {
			t.Errorf("%s later: the log begins at %d of 10, want %d; %v", c.after, sumOf(at, lane.Topic()), c.begins, err)
		}
	}
}

// TestAuditNamesWhatWasRemovedUnread: records that something has removed from the log before their
// lane had read them are drift, and the audit names them, however short its window is.
func TestAuditNamesWhatWasRemovedUnread(t *testing.T) {
	t.Parallel()
	cfg := sharing(t)
	s := newShared(t, &cfg)
	n := runAs(t, "all", cfg, seams{servers: s.open, settle: 50 * time.Millisecond})
	ctx := t.Context()
	lane, _ := notify.ParseLane("push")
	if _, err := n.client.SetLane(ctx, "push", true, "look"); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for i := range 6 {
		sent, err := n.client.Send(ctx, push(fmt.Sprintf("user-%d", i), "hello"), "")
		if err != nil {
			t.Fatal(err)
		}
		want[sent.NotificationID] = true
	}
	ends, err := n.admin.EndOffsets(ctx, lane.Topic())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the history has read what was sent", func() bool {
		at, err := n.admin.Committed(ctx, history.WritersGroup)
		return err == nil && sumOf(at, lane.Topic()) == 6
	})
	if err := n.admin.DeleteRecords(ctx, ends); err != nil { // as a broker's retention does
		t.Fatal(err)
	}
	for _, since := range []time.Time{{}, time.Now().Add(-26 * time.Hour), time.Now().Add(time.Hour)} {
		rep, err := n.client.Conservation(ctx, since)
		if err != nil {
			t.Fatal(err)
		}
		if rep.Classes[api.DriftRecordGone] != 6 || len(rep.Findings) != 6 {
			t.Errorf("since %s: %+v", since, rep)
		}
		for _, f := range rep.Findings {
			if !want[f.ID] {
				t.Errorf("%+v is none of those that were removed", f)
			}
		}
	}
}
