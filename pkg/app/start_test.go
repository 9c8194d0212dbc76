package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/log/embedded"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
	"github.com/notifyd/notifyd/pkg/worker"
)

// unreadable is a store of cancellations whose changes cannot be read.
type unreadable struct{ users.CancelStore }

var errUnreadable = errors.New("cannot be read")

func (unreadable) Changes(context.Context, uint64, int) ([]engine.Cancel, error) {
	return nil, errUnreadable
}

// watched is a provider that calls the function called at its first call.
type watched struct {
	worker.Provider
	called func()
}

func (p watched) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	p.called()
	p.Provider.Send(ctx, call, report)
}

// TestNothingIsCalledBeforeCancelsAreKnown: a notification was cancelled while nobody consumed. The
// next start does not send it before it has read the cancellations. If the cancellations cannot be
// read, the process ends.
func TestNothingIsCalledBeforeCancelsAreKnown(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	a := runAs(t, cluster.RoleAPI, cfg, seams{})
	sent, err := a.client.Send(t.Context(), push("ann", "x"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.embedded.store.Cancels().Put(t.Context(), engine.Cancel{Scope: sent.NotificationID, Caller: "test", At: time.Now().UnixMilli()}); err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	called := make(chan struct{})
	first := sync.OnceFunc(func() { close(called) })
	n, err := newNode(cfg, discard, seams{
		cancels:  func(c users.CancelStore) users.CancelStore { return unreadable{c} },
		provider: func(p worker.Provider) worker.Provider { return watched{p, first} },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	select {
	case err := <-done:
		if !errors.Is(err, errUnreadable) {
			t.Errorf("the start ended with %v", err)
		}
	case <-called:
		t.Error("a cancelled notification is called")
		stop()
		<-done
	case <-time.After(time.Minute):
		t.Error("the start goes on")
		stop()
		<-done
	}
	b := run(t, cfg, seams{})
	b.becomes(t, sent.NotificationID, "CANCELLED")
}

// TestEndOfAPart: a part of the process that ends without being told to has failed, whatever it
// returns.
func TestEndOfAPart(t *testing.T) {
	t.Parallel()
	going := t.Context()
	told, tell := context.WithCancel(going)
	tell()
	failed := errors.New("failed")
	for _, c := range []struct {
		name   string
		ctx    context.Context
		err    error
		failed bool
	}{
		{"told to", told, nil, false},
		{"told to, and says so", told, fmt.Errorf("reading: %w", context.Canceled), false},
		{"told to, and failed", told, failed, true},
		{"by itself", going, nil, true},
		{"cancelled by something else", going, fmt.Errorf("reading: %w", context.Canceled), true},
		{"failed", going, failed, true},
	} {
		if err := partError(c.ctx, c.err); (err != nil) != c.failed {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestFirstCopyThatWasTrimmed: if the log no longer has the first copy of a chunk, its receivers
// are found in the history. Otherwise the second copy, and with it its partition, would wait for
// ever.
func TestFirstCopyThatWasTrimmed(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	l := run(t, cfg, seams{})
	res, err := l.client.Fanout(t.Context(), fanout(5), "")
	if err != nil {
		t.Fatal(err)
	}
	l.delivered(t, res.FirstID, 5)
	id, err := notify.ParseID(res.FirstID)
	if err != nil {
		t.Fatal(err)
	}
	var rows []notify.Row
	if err := l.embedded.store.Status().Request(t.Context(), id.Base, func(r *notify.Row) error { rows = append(rows, *r); return nil }); err != nil {
		t.Fatal(err)
	}
	want := map[int]int{}
	for i := range rows {
		want[i] = int(rows[i].Count)
	}
	// Append records after each chunk, because the log never trims the last record of a partition.
	for i := range 20 {
		sent, err := l.client.Send(t.Context(), push(fmt.Sprint("user-", i), "behind"), "")
		if err != nil {
			t.Fatal(err)
		}
		l.becomes(t, sent.NotificationID, "DELIVERED")
	}
	ends, err := l.firstTopicEnds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.embedded.history.Sync(t.Context(), ends); err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		r := &rows[i]
		if err := l.embedded.broker.TrimOnce(map[string]map[int32]int64{r.Topic: {r.LogPart: r.Offset + 1}}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.reader.Fetch(t.Context(), log.TopicPartition{Topic: r.Topic, Partition: r.LogPart}, r.Offset); notify.KindOf(err) != notify.KindGone {
			t.Fatalf("not trimmed: %v", err)
		}
		seen, err := l.firstCopyReceivers(t.Context(), r)
		if err != nil || len(seen) != want[i] {
			t.Errorf("%d of %d receivers, %v", len(seen), want[i], err)
		}
	}
}

// Every topic of the log is consumed by a group. The position of the group says which lost records
// were consumed before.
func TestEveryTopicHasItsGroup(t *testing.T) {
	t.Parallel()
	cfg := Default()
	for topic := range topics(&cfg) {
		if topic == notify.TopicPoison { // people read it
			continue
		}
		l := loss{Loss: embedded.Loss{Topic: topic, From: 10, To: 20}, group: groupOf(topic)}
		l.Committed = map[string]int64{l.group: 15}
		if l.group == "" || l.consumed() != 5 {
			t.Errorf("%s: read by %q, %d consumed of 5", topic, l.group, l.consumed())
		}
	}
}
