package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
)

var discard = slog.New(slog.DiscardHandler)

// TestRestart: what one life has acknowledged, the next life knows: the state, the user's history,
// and the key of the request.
func TestRestart(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	var outcomes atomic.Int64
	count := func(n *Node) { n.Observe(func(*notify.Envelope) { outcomes.Add(1) }) }
	a := run(t, cfg, seams{}, count)
	if a.Admin() != "" {
		t.Errorf("api.admin is empty, and metrics are at %s", a.Admin())
	}
	sent, err := a.client.Send(t.Context(), push("ann", "first"), "key-1")
	if err != nil {
		t.Fatal(err)
	}
	a.becomes(t, sent.NotificationID, "DELIVERED")
	store := a.embedded.broker.StoreID()
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}

	b := run(t, cfg, seams{}, count)
	if b.embedded.broker.StoreID() != store {
		t.Errorf("the store's id is %s, was %s", b.embedded.broker.StoreID(), store)
	}
	again, err := b.client.Send(t.Context(), push("ann", "first"), "key-1")
	if err != nil || again.NotificationID != sent.NotificationID {
		t.Errorf("the same key: %+v, %v, want %s", again, err, sent.NotificationID)
	}
	if _, err := b.client.Send(t.Context(), push("ann", "other"), "key-1"); notify.KindOf(err) != notify.KindMismatch {
		t.Errorf("the same key with another body: %v", err)
	}
	b.becomes(t, sent.NotificationID, "DELIVERED")
	page, err := b.client.UserNotifications(t.Context(), "ann", "", 0)
	if err != nil || len(page.Items) != 1 || page.Items[0].NotificationID != sent.NotificationID || page.Items[0].Status != "DELIVERED" {
		t.Errorf("history %+v, %v", page.Items, err)
	}
	// A second notification is delivered, so the groups have found their positions.
	next, err := b.client.Send(t.Context(), push("ann", "second"), "")
	if err != nil {
		t.Fatal(err)
	}
	b.becomes(t, next.NotificationID, "DELIVERED")
	// The status is durable a moment before it is reported.
	eventually(t, "two outcomes are reported", func() bool { return outcomes.Load() >= 2 })
	if got := outcomes.Load(); got != 2 {
		t.Errorf("%d outcomes of two notifications", got)
	}
}

// TestStopLosesNothing stops nodes in the middle of fan-outs. Every acknowledged receiver is
// delivered in the end, and no goroutine of a node stays.
func TestStopLosesNothing(t *testing.T) {
	at := goleak.IgnoreCurrent()
	cfg := testConfig(t, t.TempDir())
	ids := map[string]int64{}
	for range 3 {
		l := run(t, cfg, seams{})
		for range 4 {
			f := api.Fanout{Channel: "push", Category: "transactional", Content: api.Content{Title: "t", Body: "b"}}
			for i := range 2000 {
				f.Receivers = append(f.Receivers, api.Receiver{UserID: fmt.Sprint("user-", i), Address: "apns:" + device})
			}
			res, err := l.client.Fanout(t.Context(), f, "")
			if err != nil {
				t.Fatal(err)
			}
			ids[strings.TrimSuffix(res.FirstID, "-0")] = int64(res.Accepted)
		}
		if err := l.stop(); err != nil { // amid the work
			t.Fatal(err)
		}
	}
	goleak.VerifyNone(t, at)
	l := run(t, cfg, seams{})
	for id, want := range ids {
		eventually(t, "all of "+id+" are delivered", func() bool {
			sum, err := l.client.Summary(t.Context(), id, api.Page{Limit: 10_000})
			if err != nil {
				t.Fatal(err)
			}
			return int64(sum.Counts["DELIVERED"]) == want && sum.Counted == want
		})
	}
}

func TestStoreIDs(t *testing.T) {
	t.Parallel()
	make := func() Config {
		cfg := testConfig(t, t.TempDir())
		n, err := New(cfg, discard)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	refused := func(cfg Config, how string) {
		t.Helper()
		n, err := New(cfg, discard)
		if err == nil {
			n.Close()
			t.Errorf("%s: accepted", how)
			return
		}
		if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != "store_id_mismatch" {
			t.Errorf("%s: %v", how, err)
		}
	}
	gone := make()
	if err := os.RemoveAll(filepath.Join(gone.DataDir, "log")); err != nil {
		t.Fatal(err)
	}
	refused(gone, "the log is gone")

	one, other := make(), make()
	logs := filepath.Join(one.DataDir, "log")
	err := os.RemoveAll(logs)
	if err == nil {
		err = os.Rename(filepath.Join(other.DataDir, "log"), logs)
	}
	if err != nil {
		t.Fatal(err)
	}
	refused(one, "another log")
}

// TestSecondProcess: one folder has one process. The second process is told why it cannot start,
// and blocks neither the first process nor the address of that process.
func TestSecondProcess(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	l := run(t, cfg, seams{})
	_, err := New(cfg, discard)
	e, ok := errors.AsType[*notify.Error](err)
	if !ok || e.Code != "data_dir_locked" || !strings.Contains(err.Error(), cfg.DataDir) {
		t.Errorf("%v, want an error that names the folder", err)
	}
	other := testConfig(t, t.TempDir())
	other.API.Listen = l.Addr()
	if _, err = New(other, discard); err == nil || !strings.Contains(err.Error(), "(api.listen) is taken") || !strings.Contains(err.Error(), l.Addr()) {
		t.Errorf("%v, want an error that names the address", err)
	}
	other.API.Listen = "127.0.0.1:0"
	n, err := New(other, discard) // the failed start left the folder free
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if err := started(t.Context(), l.client); err != nil {
		t.Errorf("the first: %v", err)
	}
}

// TestNewGivesEverythingBack: a node that could not be built, or that was never run, leaves nothing
// running, listening or locked.
func TestNewGivesEverythingBack(t *testing.T) {
	at := goleak.IgnoreCurrent()
	cfg := testConfig(t, t.TempDir())
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.API.Listen = l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	good := cfg
	for name, change := range map[string]func(*Config){
		"no key":       func(c *Config) { c.Auth.KeyFile = "/no/such/key.pem" },
		"no CA":        func(c *Config) { c.Providers.Stub, c.Providers.CAFile = false, "/no/such/ca.pem" },
		"no APNs key":  func(c *Config) { c.Providers.Stub, c.Providers.APNs.KeyFile = false, "/no/such.p8" },
		"admin in use": func(c *Config) { c.API.Admin = c.API.Listen },
		"everywhere":   func(c *Config) { c.API.Listen = "0.0.0.0:0" },
	} {
		bad := good
		change(&bad)
		if n, err := New(bad, discard); err == nil {
			t.Errorf("%s: accepted", name)
			_ = n.Close()
		}
		goleak.VerifyNone(t, at)
	}
	n, err := New(good, discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.RunAs(t.Context(), cluster.RoleWorker); notify.KindOf(err) != notify.KindInvalid {
		t.Errorf("role worker: %v", err)
	}
	goleak.VerifyNone(t, at)
	good.API.Listen, good.API.Plaintext = "0.0.0.0:0", "anywhere"
	if n, err = New(good, discard); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// TestRoleAPI: a process with only the API role accepts requests and delivers nothing. The next
// life delivers them.
func TestRoleAPI(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	front := runAs(t, cluster.RoleAPI, cfg, seams{})
	sent, err := front.client.Send(t.Context(), push("ann", "b"), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := front.stop(); err != nil {
		t.Fatal(err)
	}
	run(t, cfg, seams{}).becomes(t, sent.NotificationID, "DELIVERED")
}

// TestFailedStoreEndsTheProcess: after a failed write nobody knows what is durable. So the process
// ends with the disk's error, in bounded time, and the next life on the folder is whole. The test
// runs in a process of its own, because a failed store gives nothing back before its process ends.
func TestFailedStoreEndsTheProcess(t *testing.T) {
	t.Parallel()
	if os.Getenv(childEnv) == "" {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), childEnv+"=1")
		out, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	cfg := testConfig(t, t.TempDir())
	cfg.Workers.Drain = time.Second
	var broken atomic.Bool
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasSuffix(op.Path, ".log") {
			return syscall.EIO
		}
		return nil
	})
	l := run(t, cfg, seams{storeFS: errorfs.Wrap(vfs.Default, inject)})
	first, err := l.client.Send(t.Context(), push("ann", "before"), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, first.NotificationID, "DELIVERED")
	broken.Store(true)
	l.client.Retries = 0
	_, _ = l.client.Send(t.Context(), push("ann", "meanwhile"), "") // the failed write is that of the request or of its outcome
	err = l.ended(t)
	if err == nil || !errors.Is(err, syscall.EIO) || notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("Run returned %v, want the disk's error", err)
	}
	if !strings.Contains(l.log.String(), "a part of the process failed") {
		t.Error("the log does not say which part failed")
	}
	// A failed store keeps its folder until the process ends. So the next life uses a copy.
	next := cfg
	next.DataDir = filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(next.DataDir, os.DirFS(cfg.DataDir)); err != nil {
		t.Fatal(err)
	}
	run(t, next, seams{}).becomes(t, first.NotificationID, "DELIVERED")
}

// TestTrimStaysBehindSealedHistory: the log is trimmed, but only records that the history has
// sealed. Trimmed records are read from the history.
func TestTrimStaysBehindSealedHistory(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	l := run(t, cfg, seams{historyAge: 100 * time.Millisecond, segment: 64 << 10})
	first := fill(t, l)
	topic := notify.Lane{Channel: notify.Push}.Topic()
	eventually(t, "the log is trimmed", func() bool {
		starts, err := l.admin.StartOffsets(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		trimmed := false
		sealed := l.embedded.history.Sealed()
		for tp, at := range starts {
			if at > sealed[history.Part(tp)] {
				t.Fatalf("%v begins at %d, history is sealed to %d", tp, at, sealed[history.Part(tp)])
			}
			trimmed = trimmed || at > 0
		}
		return trimmed
	})
	l.becomes(t, first, "DELIVERED")
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	run(t, cfg, seams{}).becomes(t, first, "DELIVERED")

	// The same work, with a history that seals late: every record has its outcome, but none may be
	// trimmed.
	late := run(t, testConfig(t, t.TempDir()), seams{segment: 64 << 10})
	fill(t, late)
	eventually(t, "the groups have committed", func() bool {
		for _, g := range late.groups.list {
			for _, p := range g.Stats().Partitions {
				if p.TP.Topic == topic && p.Committed > 0 {
					return true
				}
			}
		}
		return false
	})
	if err := late.embedded.broker.TrimOnce(late.groups.trimOffsets(late.embedded.history.Sealed())); err != nil {
		t.Fatal(err)
	}
	starts, err := late.admin.StartOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for tp, at := range starts {
		if at != 0 {
			t.Errorf("%v was trimmed to %d before its history was sealed", tp, at)
		}
	}
}

// fill sends fan-outs and waits until all are delivered.
func fill(t *testing.T, l *life) (first string) {
	t.Helper()
	for range 8 {
		f := api.Fanout{Channel: "push", Category: "transactional", Content: api.Content{Title: "t", Body: "b"}}
		for i := range 3000 {
			f.Receivers = append(f.Receivers, api.Receiver{UserID: fmt.Sprint("user-", i), Address: "apns:" + device})
		}
		res, err := l.client.Fanout(t.Context(), f, "")
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = res.FirstID
		}
		eventually(t, "the fan-out is delivered", func() bool {
			sum, err := l.client.Summary(t.Context(), strings.TrimSuffix(res.FirstID, "-0"), api.Page{Limit: 10_000})
			if err != nil {
				t.Fatal(err)
			}
			return sum.Counts["DELIVERED"] == res.Accepted
		})
	}
	return first
}

// TestIdle: a node that has done its work says so.
func TestIdle(t *testing.T) {
	t.Parallel()
	l := run(t, testConfig(t, t.TempDir()), seams{})
	eventually(t, "it is idle", l.Idle)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	sent, err := l.client.Send(ctx, push("ann", "b"), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, sent.NotificationID, "DELIVERED")
	eventually(t, "it is idle again", l.Idle)
}

// TestTimerShardsAreKept: the timers of a store are spread over the number of shards with which the
// store was first started. Another number is refused.
func TestTimerShardsAreKept(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	for _, c := range []struct {
		shards int
		ok     bool
	}{{8, true}, {8, true}, {16, false}, {8, true}} {
		cfg.Timers.Shards = c.shards
		n, err := New(cfg, discard)
		if err == nil {
			err = n.Close()
		}
		if c.ok {
			if err != nil {
				t.Fatalf("%d shards: %v", c.shards, err)
			}
			continue
		}
		e, _ := errors.AsType[*notify.Error](err)
		if e == nil || e.Kind != notify.KindInvalid || e.Field != "timers.shards" || !strings.Contains(e.Msg, "16") || !strings.Contains(e.Msg, "8 shards") {
			t.Errorf("%d shards: %v", c.shards, err)
		}
	}
}
