package conserve

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

var pushLog = log.TopicPartition{Topic: "notifications-push"}

// oneChunk is a history that has sealed offsets 0 and 1. It holds one chunk of one
// receiver, from offset 0.
type oneChunk struct {
	many
	env notify.Envelope
}

func newOneChunk() *oneChunk {
	now := time.Now()
	var w notify.ReceiverWriter
	w.Append(notify.Receiver{User: []byte("user")})
	return &oneChunk{env: notify.Envelope{
		Chunk: notify.Chunk{Base: notify.NewBase(now)}, Channel: notify.Push, Category: notify.Marketing,
		Accepted: now.UnixMilli(), Caller: "shop", Count: w.Count(), Receivers: w.Bytes(),
	}}
}

func (h *oneChunk) Chunks(_ context.Context, from map[history.Part]int64, _ int64, fn func(*engine.Found) error) (map[history.Part]int64, error) {
	p := history.Part(pushLog)
	if from[p] == 0 {
		if err := fn(&engine.Found{Topic: p.Topic, Envelope: h.env}); err != nil {
			return nil, err
		}
	}
	return map[history.Part]int64{p: 2}, nil
}

// shownLog is a log of one partition. Read shows a record of env at offset from
// the look number showFrom on. A look is a Read that asks for that offset.
type shownLog struct {
	env      *notify.Envelope
	bounds   Bounds
	offset   int64
	showFrom int
	looks    int
}

func (l *shownLog) Bounds(context.Context) (map[log.TopicPartition]Bounds, error) {
	return map[log.TopicPartition]Bounds{pushLog: l.bounds}, nil
}

func (l *shownLog) Read(_ context.Context, from, to map[log.TopicPartition]int64, fn func(log.TopicPartition, *log.Record) error) error {
	if l.offset < from[pushLog] || l.offset >= to[pushLog] {
		return nil
	}
	if l.looks++; l.looks < l.showFrom {
		return nil
	}
	return fn(pushLog, &log.Record{Topic: pushLog.Topic, Offset: l.offset, Value: notify.AppendEnvelope(nil, l.env)})
}

func (l *shownLog) Lost(log.TopicPartition, int64) bool { return false }

func auditOnce(t *testing.T, h *oneChunk, log *shownLog, rows ...notify.Row) api.Conservation {
	t.Helper()
	store := memory.New()
	if err := store.Status().Put(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	log.env = &h.env
	rep, err := New(Config{
		Log: log, History: h, Status: store.Status(), Timers: store.Timers(), Cold: store.ColdTimers(),
		Spill: store.Spill(), Schedules: noSchedules{}, Shards: engine.FixedShards(1), First: []string{pushLog.Topic},
	}).Run(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// TestSuspectIsLookedAtAgain: a record may move between the places that one look
// reads, so a receiver counts as lost only after Config.Rounds looks.
func TestSuspectIsLookedAtAgain(t *testing.T) {
	for showFrom, want := range map[int]struct {
		lost, pending int64
		looks         int
	}{
		1: {0, 1, 1},
		2: {0, 1, 2},
		3: {0, 1, 3},
		4: {1, 0, 3}, // three looks found nothing
	} {
		synctest.Test(t, func(t *testing.T) {
			log := &shownLog{bounds: Bounds{Start: 1, Committed: 1, End: 2}, offset: 1, showFrom: showFrom}
			rep := auditOnce(t, newOneChunk(), log)
			if rep.Lost != want.lost || rep.Pending != want.pending || rep.Drift != want.lost || log.looks != want.looks {
				t.Errorf("shown at look %d: lost %d, pending %d, drift %d after %d looks, want %+v", showFrom, rep.Lost, rep.Pending, rep.Drift, log.looks, want)
			}
		})
	}
}

// TestAnsweredRecordIsNoLead: the receiver was deferred and its timer is gone. The
// record that the deferral has answered is still uncommitted. The worker skips it,
// so it does not lead to an outcome. A copy behind it does: the worker parks the
// timer again.
func TestAnsweredRecordIsNoLead(t *testing.T) {
	for offset, want := range map[int64]struct {
		classes map[string]int64
		waiting map[string]int64
	}{
		0: {classes: map[string]int64{api.DriftHandonGone: 1}, waiting: map[string]int64{}},
		1: {classes: map[string]int64{}, waiting: map[string]int64{inLog: 1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newOneChunk()
			key := h.env.Key()
			rep := auditOnce(t, h, &shownLog{bounds: Bounds{End: 2}, offset: offset}, notify.Row{
				Key: key, Count: 1, Digest: notify.ColumnDigest(h.env.Receivers), DoneUpTo: 1, StartedUpTo: 1, Done: true,
				Default: notify.Exception{State: notify.Deferred, Retry: true, Wake: time.Now().Add(time.Minute).UnixMilli()},
				Updated: time.Now().UnixMilli(), Topic: pushLog.Topic,
			})
			if !maps.Equal(rep.Classes, want.classes) || !maps.Equal(rep.Waiting, want.waiting) {
				t.Errorf("record at offset %d: drift %v, waiting %v, want %+v", offset, rep.Classes, rep.Waiting, want)
			}
		})
	}
}
