package worker

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/timer"
)

// payloadless is a timer store whose ScanWithoutPayload returns no payloads.
type payloadless struct{ engine.Timers }

func (a payloadless) ScanWithoutPayload(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	rows, err := a.Timers.ScanWithoutPayload(ctx, p, after, until, max)
	rows = slices.Clone(rows)
	for i := range rows {
		rows[i].Payload = nil
	}
	return rows, err
}

// TestDeferredRows checks that the rows which a worker has deferred are counted by topic and
// reason, on whatever page they are, and whether or not ScanWithoutPayload returns payloads. Rows
// that are due already are not counted.
func TestDeferredRows(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Minute).Add(30 * time.Second)
	topic := notify.Lane{Channel: notify.SMS}.DLQTopic()
	var rows []engine.Timer
	row := func(in time.Duration, cause string, change func(*engine.Timer)) {
		e := notify.Envelope{
			Chunk: notify.Chunk{Base: notify.NewBase(now).Item(len(rows))}, Channel: notify.SMS, Category: notify.OTP, Caller: "shop",
			Accepted: now.Add(-time.Duration(len(rows)) * time.Second).UnixMilli(), Attempt: 1, Cause: cause, Count: 2,
		}
		var w notify.ReceiverWriter
		w.Append(notify.Receiver{User: []byte("ann")})
		w.Append(notify.Receiver{Index: 1, User: []byte("bob")})
		e.Receivers = w.Bytes()
		r := engine.Timer{FireAt: now.Add(in).UnixMilli(), ID: []byte(fmt.Sprint("row ", len(rows))), Kind: timer.KindEnvelope, Target: topic, Payload: notify.AppendEnvelope(nil, &e)}
		if change != nil {
			change(&r)
		}
		rows = append(rows, r)
	}
	row(-time.Millisecond, "quiet_hours", nil)                                                             // released
	row(time.Minute, "quiet_hours", func(r *engine.Timer) { r.Head = notify.NewBase(now) })                // scheduled
	row(time.Minute, "quiet_hours", func(r *engine.Timer) { r.Kind, r.Payload = 77, []byte("a trigger") }) // another kind
	row(time.Hour, "", nil)
	for range 3 * deferredPage {
		row(time.Minute, "called:account_blocked", nil)
	}
	for k := range deferredReasons + 4 {
		for range 30 - k {
			row(time.Duration(k)*time.Minute+time.Second, fmt.Sprintf("maybe:code_%02d", k), nil)
		}
	}
	mem := memory.New().Timers()
	if err := mem.Put(t.Context(), notify.SpreadOver(4), rows); err != nil {
		t.Fatal(err)
	}
	for name, timers := range map[string]engine.Timers{"with payloads": mem, "without payloads": payloadless{mem}} {
		d := &DeferredCounter{Timers: timers, Shards: engine.FixedShards(4)}
		if _, err := d.Count(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		c := d.last.Load()
		got := c.Topics[topic]
		sum := int64(0)
		for _, d := range got {
			sum += d.Receivers
		}
		if len(c.Topics) != 1 || len(got) != deferredReasons || sum != int64(2*(len(rows)-3)) {
			t.Errorf("%s: %d topics, %d reasons, %d receivers of %d rows", name, len(c.Topics), len(got), sum, len(rows))
			continue
		}
		oldest := now.Add(-time.Duration(3+3*deferredPage) * time.Second)
		if d := got[0]; d.Reason != "account_blocked" || d.Receivers != 6*deferredPage || d.Oldest.UnixMilli() != oldest.UnixMilli() || d.Next.UnixMilli() != now.Add(time.Minute).UnixMilli() {
			t.Errorf("%s: the largest is %+v", name, d)
		}
		if d := got[1]; d.Reason != "code_00" || d.Receivers != 60 {
			t.Errorf("%s: the second is %+v", name, d)
		}
		if d := got[deferredReasons-1]; d.Reason != otherReasons {
			t.Errorf("%s: the last is %+v", name, d)
		}
	}
}
