package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// find returns the doctor's findings of one check.
func (l *life) find(t *testing.T, check string) (fs []engine.Finding) {
	t.Helper()
	all, err := views{l.Node}.doctor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all.(engine.Findings) {
		if f.Check == check {
			fs = append(fs, f)
		}
	}
	return fs
}

// TestDamagedLog: a bit in the middle of the log is damaged, and the next start finds that. The
// accepted records that are lost are reported with their offsets, either as lost or as consumed
// before, and they do not count as done. The rest of the log is delivered, lag and look-ups reach
// its end, and new offsets begin where the old ones ended.
func TestDamagedLog(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	cfg.Log.Partitions["push"] = 1
	a := runAs(t, cluster.RoleAPI, cfg, seams{}) // nobody consumes
	var ids []string
	for i := range 10 {
		sent, err := a.client.Send(t.Context(), push(fmt.Sprint("user-", i), fmt.Sprint("this is body ", i, ";")), "")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sent.NotificationID)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	damage(t, cfg, "this is body 4;")
	damage(t, cfg, "this is body 9;") // the last one

	cfg.API.Admin = "127.0.0.1:0"
	b := run(t, cfg, seams{})
	for i, id := range ids {
		if i != 4 && i != 9 {
			b.becomes(t, id, "DELIVERED")
			continue
		}
		_, err := b.client.Notification(t.Context(), id)
		if e, ok := errors.AsType[*notify.Error](err); !ok || e.Kind != notify.KindGone || e.Code != "record_lost" {
			t.Errorf("%s: %v, want that it may be lost", id, err)
		}
	}
	old := notify.ID{Base: notify.NewBase(time.Now().Add(-time.Hour))}
	if _, err := b.client.Notification(t.Context(), old.String()); notify.KindOf(err) != notify.KindNotFound {
		t.Errorf("an id of another time: %v, want not found", err)
	}
	var told []string
	for _, f := range b.find(t, "log damage") {
		if f.Level != "fail" {
			t.Errorf("%+v", f)
		}
		told = append(told, f.Detail)
	}
	for i, want := range []string{
		"notifications-push/0: acknowledged records 4 to 4 (1) are damaged and gone: 0 consumed before (push-workers had committed 0), 1 lost for good; 1 not in the history",
		"notifications-push/0: acknowledged records 9 to 9 (1) are damaged and gone: 0 consumed before (push-workers had committed 0), 1 lost for good; 1 not in the history",
	} {
		if len(told) != 2 || !strings.HasPrefix(told[i], want) {
			t.Fatalf("doctor says %q", told)
		}
	}
	if f := b.find(t, "log segments"); f[0].Level != "fail" || !strings.Contains(f[0].Detail, "losses.json") {
		t.Errorf("%+v", f)
	}
	if w := (views{b.Node}).warnings(); len(w) != 1 || w[0] != "log_damaged" {
		t.Errorf("warnings %v", w)
	}
	if m := scrape(t, b.Node); !strings.Contains(m, "\nnotifyd_log_lost_records{consumed=\"no\"} 2\n") {
		t.Errorf("metrics:\n%s", m)
	}
	// Nothing waits at the gap at the end of the log, although no record follows it.
	eventually(t, "nothing is left to do", b.Idle)
	ends, err := b.firstTopicEnds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	if err := b.embedded.history.Sync(ctx, ends); err != nil {
		t.Errorf("history does not reach the end: %v", err)
	}
	sent, err := b.client.Send(t.Context(), push("user-0", "next"), "")
	if err != nil {
		t.Fatal(err)
	}
	b.becomes(t, sent.NotificationID, "DELIVERED")
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}

	// Damage to records that were done is reported differently, and the first damage is not
	// forgotten.
	damage(t, cfg, "this is body 2;")
	c := run(t, cfg, seams{})
	c.becomes(t, sent.NotificationID, "DELIVERED")
	fs := c.find(t, "log damage")
	if len(fs) != 3 || !strings.Contains(fs[2].Detail, "records 2 to 2 (1) are damaged and gone: 1 consumed before (push-workers had committed 11), 0 lost for good; 1 not in the history") {
		t.Errorf("doctor says %+v", fs)
	}
}

// TestFanoutWithALostPart: the parts of a fan-out that still exist are counted, and the summary
// shows how much is missing.
func TestFanoutWithALostPart(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	a := runAs(t, cluster.RoleAPI, cfg, seams{})
	f := api.Fanout{Channel: "push", Category: "transactional", Content: api.Content{Body: "b"}}
	for i := range 100 {
		f.Receivers = append(f.Receivers, api.Receiver{UserID: fmt.Sprint("user-", i), Address: "apns:" + device})
	}
	sent, err := a.client.Fanout(t.Context(), f, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	damage(t, cfg, "user-0") // the part that holds index 0
	b := run(t, cfg, seams{})
	id := strings.TrimSuffix(sent.FirstID, "-0")
	var sum api.Summary
	eventually(t, "the other part is delivered", func() bool {
		if sum, err = b.client.Summary(t.Context(), id, api.Page{}); err != nil {
			t.Fatal(err)
		}
		return int64(sum.Counts["DELIVERED"]) == sum.Counted
	})
	if sum.Counted == 0 || sum.Counted == 100 || sum.Accepted != 100 || sum.Pending == nil || *sum.Pending != 100-sum.Counted || !sum.Complete {
		t.Errorf("%+v", sum)
	}
}

// damage flips a bit at the first place in the log that has the text.
func damage(t *testing.T, cfg Config, text string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(cfg.DataDir, "log", "partitions", "*", "*.dat"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.Index(raw, []byte(text)); i >= 0 {
			raw[i] ^= 1
			if err := os.WriteFile(file, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("the log does not hold %q", text)
}
