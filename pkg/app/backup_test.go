package app

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/backup"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/worker"
)

// promised collects the ids that a node has acknowledged.
type promised struct {
	mu  sync.Mutex
	ids []string
}

func (p *promised) add(ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = append(p.ids, ids...)
}

func (p *promised) soFar() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.ids...)
}

// Backups are made of a node at work: segments fill, the history is sealed, the log is trimmed
// behind it, and timers become records. A node that starts on one of the backups knows and delivers
// everything that was accepted before that backup began.
func TestBackupHoldsWhatWasAccepted(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	small := seams{historyAge: 20 * time.Millisecond, segment: 2 << 10}
	var p promised
	a := run(t, cfg, small)
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	send := func(what string, f func(i int) ([]string, error)) {
		load.Go(func() {
			pace := time.NewTicker(20 * time.Millisecond)
			defer pace.Stop()
			for i := 0; ctx.Err() == nil; i++ {
				<-pace.C
				ids, err := f(i)
				if err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				p.add(ids...)
			}
		})
	}
	send("batch", func(i int) (ids []string, err error) {
		var ns []api.Notification
		for k := range 5 {
			ns = append(ns, push(fmt.Sprint("user-", k), fmt.Sprint("batch ", i)))
		}
		res, err := a.client.SendBatch(ctx, ns, "")
		for _, r := range res.Results {
			ids = append(ids, r.NotificationID)
		}
		return ids, err
	})
	// Timers become due all the time. Each of them leaves the store when it enters the log.
	send("soon", func(i int) ([]string, error) {
		n := push("soon", fmt.Sprint("soon ", i))
		at := time.Now().Add(1200 * time.Millisecond)
		n.ScheduledAt = &at
		sent, err := a.client.Send(ctx, n, "")
		return []string{sent.NotificationID}, err
	})
	n := push("later", "in an hour")
	at := time.Now().Add(time.Hour)
	n.ScheduledAt = &at
	later, err := a.client.Send(ctx, n, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.client.PutUser(ctx, api.User{UserID: "kept", TimeZone: "Europe/Berlin"}); err != nil {
		t.Fatal(err)
	}

	type taken struct {
		file bytes.Buffer
		ids  []string
	}
	backups := make([]taken, 3)
	for i := range backups {
		more := len(p.soFar()) + 50
		eventually(t, "load", func() bool { return len(p.soFar()) > more })
		safe(t, a) // trims the log as far as that is allowed
		backups[i].ids = p.soFar()
		if _, err := a.client.Backup(t.Context(), &backups[i].file); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	load.Wait()
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	for i := range backups {
		b := &backups[i]
		dir := t.TempDir()
		restored := testConfig(t, dir)
		if _, err := backup.Restore(t.Context(), &b.file, restored.DataDir); err != nil {
			t.Fatal(err)
		}
		l := run(t, restored, small)
		for _, id := range b.ids {
			l.becomes(t, id, notify.Delivered.String())
		}
		if st, err := l.client.Notification(t.Context(), later.NotificationID); err != nil || st.Status != notify.Scheduled.String() {
			t.Errorf("scheduled in an hour: %q %v", st.Status, err)
		}
		if u, err := l.client.User(t.Context(), "kept"); err != nil || u.TimeZone != "Europe/Berlin" {
			t.Errorf("user: %+v %v", u, err)
		}
		for _, check := range []string{"log damage", "history"} {
			for _, f := range l.find(t, check) {
				if f.Level != "ok" {
					t.Errorf("%+v", f)
				}
			}
		}
		if err := l.stop(); err != nil {
			t.Fatal(err)
		}
		t.Logf("backup %d: %d accepted before it, all delivered", i, len(b.ids))
	}
	if left, _ := filepath.Glob(filepath.Join(cfg.DataDir, stagingName)); len(left) != 0 {
		t.Error("the staging folder is still there")
	}
}

// Everything accepted before the backup is delivered and committed between two parts of the backup,
// whichever two these are. The commits in the backup must not be ahead of the outcomes.
func TestBackupWhileWorkIsDone(t *testing.T) {
	t.Parallel()
	for part := 1; part <= 3; part++ {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			t.Parallel()
			gate := make(chan struct{})
			var a *life
			var ids []string
			calls := 0
			s := seams{gathered: func() {
				if calls++; calls == part {
					close(gate)
					for _, id := range ids {
						a.becomes(t, id, notify.Delivered.String())
					}
					committed(t, a)
					// The history seals the records, and the log is trimmed.
					eventually(t, "sealed", func() bool { return sealed(t, a) })
					safe(t, a)
				}
			}, historyAge: 20 * time.Millisecond, segment: 2 << 10}
			s.provider = func(p worker.Provider) worker.Provider { return gated{p, gate} }
			a = run(t, testConfig(t, t.TempDir()), s)
			var ns []api.Notification
			for k := range 200 {
				ns = append(ns, push(fmt.Sprint("user-", k), "held"))
			}
			for range 5 {
				res, err := a.client.SendBatch(t.Context(), ns, "")
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range res.Results {
					ids = append(ids, r.NotificationID)
				}
			}
			restoredHas(t, a, ids)
		})
	}
}

// gated is a provider that does not answer before its gate opens.
type gated struct {
	worker.Provider
	gate <-chan struct{}
}

func (g gated) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	select {
	case <-g.gate:
	case <-ctx.Done():
	}
	g.Provider.Send(ctx, call, report)
}

// restoredHas makes a backup of a node and stops the node. Then it checks that a node on the backup
// delivers everything that the first node has acknowledged.
func restoredHas(t *testing.T, a *life, ids []string) {
	t.Helper()
	var file bytes.Buffer
	if _, err := a.client.Backup(t.Context(), &file); err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, t.TempDir())
	if _, err := backup.Restore(t.Context(), &file, cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	b := run(t, cfg, seams{})
	for _, id := range ids {
		b.becomes(t, id, notify.Delivered.String())
	}
	page, err := b.client.UserNotifications(t.Context(), "user-7", "", 100)
	if err != nil || len(page.Items) != 5 {
		t.Errorf("a user's history has %d notifications, not 5: %v", len(page.Items), err)
	}
}

// ends returns the end offsets of the topics of first attempts.
func ends(t *testing.T, l *life) map[log.TopicPartition]int64 {
	t.Helper()
	at, err := l.admin.EndOffsets(t.Context(), notify.FirstTopics()...)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// sealed reports whether the history has sealed all records.
func sealed(t *testing.T, l *life) bool {
	t.Helper()
	kept := l.embedded.history.Sealed()
	for tp, end := range ends(t, l) {
		if kept[history.Part(tp)] < end {
			return false
		}
	}
	return true
}

// committed waits until the groups have committed all records.
func committed(t *testing.T, l *life) {
	t.Helper()
	eventually(t, "commits", func() bool {
		at := ends(t, l)
		for _, g := range l.groups.list {
			for _, p := range g.Stats().Partitions {
				if end, ok := at[p.TP]; ok && max(p.Committed, 0) < end {
					return false
				}
			}
		}
		return true
	})
}

// safe trims the log as the node would.
func safe(t *testing.T, l *life) {
	t.Helper()
	if err := l.embedded.broker.TrimOnce(l.groups.trimOffsets(l.embedded.history.Sealed())); err != nil {
		t.Error(err)
	}
}

func TestOneBackupAtATime(t *testing.T) {
	t.Parallel()
	l := run(t, testConfig(t, t.TempDir()), seams{})
	s, err := l.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Backup(t.Context()); notify.KindOf(err) != notify.KindConflict {
		t.Errorf("a second one: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = l.Backup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
