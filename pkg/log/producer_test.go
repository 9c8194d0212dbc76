package log

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

func isLogUnavailable(err error) bool {
	e, ok := errors.AsType[*notify.Error](err)
	return ok && e.Kind == notify.KindUnavailable && e.Code == "log"
}

// bothWays runs fn in a bubble for each of the two ways of an append.
func bothWays(t *testing.T, fn func(t *testing.T, n Brokers)) {
	for name, n := range map[string]Brokers{"many brokers": ManyBrokers, "one broker": OneBroker} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { fn(t, n) }) })
	}
}

// collect reads a topic to its end.
func (b *broker) collect(t testing.TB, topic string) []Record {
	t.Helper()
	r, err := NewReader(b.conn)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ends, err := r.HighWater(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	from, err := b.admin(t).StartOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	for tp, end := range ends {
		left += int(end - from[tp])
	}
	var out []Record
	if left == 0 {
		return nil
	}
	enough := errors.New("enough")
	err = r.Run(t.Context(), from, func(_ TopicPartition, recs []Record) error {
		out = append(out, recs...)
		if len(out) >= left {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	return out
}

func TestAppend(t *testing.T) {
	bothWays(t, func(t *testing.T, n Brokers) {
		b := newBroker(t, 6, "topic")
		p := newProducer(t, ProducerConfig{Conn: b.conn, Brokers: n})
		sent := time.UnixMilli(1_700_000_000_000)
		recs := []Record{
			{Topic: "topic", Partition: 4, Value: []byte("explicit"), Key: []byte("user")},
			{Topic: "topic", Partition: -1, Value: []byte("keyed"), Key: []byte("user"), Time: sent, Headers: []Header{{"a", []byte("b")}}},
		}
		for range 12 {
			recs = append(recs, Record{Topic: "topic", Partition: -1, Value: []byte("any")})
		}
		if err := p.Append(t.Context(), recs); err != nil {
			t.Fatal(err)
		}
		anywhere := make(map[int32]int)
		for _, r := range b.collect(t, "topic") {
			switch string(r.Value) {
			case "explicit":
				if r.Partition != 4 {
					t.Errorf("explicit in %d", r.Partition)
				}
			case "keyed":
				if r.Partition != notify.Partition([]byte("user"), 6) || !r.Time.Equal(sent) || len(r.Headers) != 1 || string(r.Headers[0].Value) != "b" {
					t.Errorf("keyed: %+v", r)
				}
			case "any":
				anywhere[r.Partition]++
			}
		}
		if len(anywhere) != 6 {
			t.Errorf("records without key went to %v", anywhere)
		}
		if err := p.Append(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if err := p.Append(t.Context(), []Record{{Topic: "topic", Partition: 6}}); err == nil {
			t.Error("partition 6 of 6 was taken")
		}
		if err := p.Append(t.Context(), []Record{{Topic: "missing", Partition: -1}}); !isLogUnavailable(err) {
			t.Errorf("missing topic: %v", err)
		}
	})
}

func TestAppendRefusesWhatIsTooLargeWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		p := newProducer(t, ProducerConfig{Conn: b.conn, MaxRecordBytes: 100_000})
		ok := Record{Topic: "topic", Value: make([]byte, 99_990), Key: []byte("0123456789")}
		if err := p.Append(t.Context(), []Record{ok}); err != nil {
			t.Fatal(err)
		}
		over := ok
		over.Headers = []Header{{Key: "k"}}
		if err := p.Append(t.Context(), []Record{ok, over}); notify.KindOf(err) != notify.KindTooLarge {
			t.Errorf("%v, want too large", err)
		}
		if got := b.collect(t, "topic"); len(got) != 1 {
			t.Errorf("%d records stored, want 1", len(got))
		}
		// This is the broker's own limit, which another cluster may have set lower.
		p = newProducer(t, ProducerConfig{Conn: b.conn, MaxRecordBytes: 4_000_000})
		if err := p.Append(t.Context(), []Record{{Topic: "topic", Value: make([]byte, 3_000_000)}}); notify.KindOf(err) != notify.KindTooLarge {
			t.Errorf("%v, want too large", err)
		}
	})
}

// Within a second after the broker froze, the append under way and later appends get an error, and
// the probe knows it. Afterwards everything continues.
func TestFrozenBrokerIsNoticedWithinASecond(t *testing.T) {
	bothWays(t, func(t *testing.T, n Brokers) {
		b := newBroker(t, 1, "topic")
		p := newProducer(t, ProducerConfig{Conn: b.conn, Brokers: n})
		probe, err := NewProbe(ProbeConfig{Conn: b.conn})
		if err != nil {
			t.Fatal(err)
		}
		if !isLogUnavailable(probe.Err()) {
			t.Errorf("before the first answer: %v", probe.Err())
		}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { probe.Run(ctx) })
		defer wg.Wait()
		defer stop()
		if err := p.Append(t.Context(), numbered("topic", 0, 0, 10)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := probe.Err(); err != nil {
			t.Fatal(err)
		}
		thaw := b.freeze()
		frozen := time.Now()
		for range 3 {
			before := time.Now()
			err := p.Append(t.Context(), numbered("topic", 0, 10, 10))
			if took := time.Since(before); !isLogUnavailable(err) || took > 1010*time.Millisecond {
				t.Errorf("append: %v after %v", err, took)
			}
			if probe.Err() == nil {
				t.Errorf("the probe sees nothing after %v", time.Since(frozen))
			}
		}
		thaw()
		for deadline := time.Now().Add(5 * time.Second); p.Append(t.Context(), numbered("topic", 0, 20, 10)) != nil; {
			if time.Now().After(deadline) {
				t.Fatal("appends still fail 5 s after the thaw")
			}
		}
		time.Sleep(time.Second)
		if err := probe.Err(); err != nil {
			t.Error(err)
		}
		if got := b.collect(t, "topic"); len(got) < 20 {
			t.Errorf("%d records stored", len(got))
		}
	})
}

func TestDeadBrokerIsNoticedWithinASecond(t *testing.T) {
	bothWays(t, func(t *testing.T, n Brokers) {
		b := newBroker(t, 1, "topic")
		net, conn := b.wire()
		p := newProducer(t, ProducerConfig{Conn: conn, Brokers: n})
		probe, err := NewProbe(ProbeConfig{Conn: conn})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { probe.Run(ctx) })
		defer wg.Wait()
		defer stop()
		if err := p.Append(t.Context(), numbered("topic", 0, 0, 10)); err != nil {
			t.Fatal(err)
		}
		net.kill()
		before := time.Now()
		err = p.Append(t.Context(), numbered("topic", 0, 10, 10))
		if took := time.Since(before); !isLogUnavailable(err) || took > 1010*time.Millisecond {
			t.Errorf("append: %v after %v", err, took)
		}
		time.Sleep(300 * time.Millisecond)
		if probe.Err() == nil {
			t.Error("the probe sees nothing")
		}
	})
}

func TestAppendEndsWithItsContext(t *testing.T) {
	bothWays(t, func(t *testing.T, n Brokers) {
		b := newBroker(t, 1, "topic")
		p := newProducer(t, ProducerConfig{Conn: b.conn, Brokers: n})
		defer b.freeze()()
		ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer stop()
		before := time.Now()
		if err := p.Append(ctx, numbered("topic", 0, 0, 1)); !isLogUnavailable(err) || time.Since(before) > 101*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(before))
		}
	})
}

// Appends whose context never ends share a deadline. It is at most a sixteenth of the timeout
// earlier than a deadline of their own would be, and never later.
func TestTurnsEndNoLaterThanTheirLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := deadlineContexts{length: time.Second}
		defer turn.close()
		seen := map[context.Context]bool{}
		for range 1000 {
			ctx := turn.current()
			seen[ctx] = true
			if end, ok := ctx.Deadline(); !ok || time.Until(end) > time.Second || time.Until(end) < 937*time.Millisecond {
				t.Fatalf("ends in %v", time.Until(end))
			}
			time.Sleep(time.Millisecond)
		}
		if len(seen) > deadlineShare+1 {
			t.Errorf("%d contexts in a second", len(seen))
		}
		ctx := turn.current()
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), errTooSlow) {
			t.Error(context.Cause(ctx))
		}
	})
}

func TestAppendsThatCannotBeCancelledGiveUp(t *testing.T) {
	bothWays(t, func(t *testing.T, n Brokers) {
		b := newBroker(t, 1, "topic")
		p := newProducer(t, ProducerConfig{Conn: b.conn, Brokers: n})
		ctx := context.WithoutCancel(t.Context())
		if err := p.Append(ctx, numbered("topic", 0, 0, 1)); err != nil {
			t.Fatal(err)
		}
		thaw := b.freeze()
		for i := range 40 {
			time.Sleep(time.Duration(i) * 7 * time.Millisecond) // anywhere in a turn
			before := time.Now()
			err := p.Append(ctx, numbered("topic", 0, 1+i, 1))
			took := time.Since(before)
			if !isLogUnavailable(err) || took > time.Second {
				t.Errorf("append %d: %v after %v", i, err, took)
			}
		}
		thaw()
		for deadline := time.Now().Add(5 * time.Second); p.Append(ctx, numbered("topic", 0, 50, 1)) != nil; {
			if time.Now().After(deadline) {
				t.Fatal("appends still fail 5 s after the thaw")
			}
		}
	})
}

// Callers may reuse their slices after a nil error. The records of each caller stay in order, even
// if many callers append at once.
func TestConcurrentAppendsKeepEachOnesOrder(t *testing.T) {
	onClusters(t, 3, func(t *testing.T, b *broker) {
		p := newProducer(t, ProducerConfig{Conn: b.conn, AppendTimeout: time.Minute})
		var wg sync.WaitGroup
		for user := range 20 {
			ctx := t.Context()
			if user%2 == 0 {
				ctx = context.WithoutCancel(ctx)
			}
			wg.Go(func() {
				value := make([]byte, 2)
				recs := make([]Record, 5)
				for i := range 20 {
					for j := range recs {
						value := append([]byte(nil), value...)
						value[0], value[1] = byte(user), byte(5*i+j)
						recs[j] = Record{Topic: b.topic, Partition: -1, Key: []byte{byte(user)}, Value: value}
					}
					if err := p.Append(ctx, recs); err != nil {
						t.Error(err)
					}
					for j := range recs {
						recs[j].Value[0] = 0xff
					}
				}
			})
		}
		wg.Wait()
		got := make(map[byte][]byte)
		for _, r := range b.collect(t, b.topic) {
			got[r.Value[0]] = append(got[r.Value[0]], r.Value[1])
		}
		for user := range byte(20) {
			if s := got[user]; len(s) != 100 || !slices.IsSorted(s) {
				t.Errorf("user %d: %v", user, s)
			}
		}
	})
}

func TestAppendFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		p := newProducer(t, ProducerConfig{Conn: b.conn})
		errs := make(chan error, 3)
		p.AppendFunc(t.Context(), nil, func(err error) { errs <- err })
		p.AppendFunc(t.Context(), numbered("topic", 0, 0, 10), func(err error) { errs <- err })
		if err := errors.Join(<-errs, <-errs); err != nil {
			t.Fatal(err)
		}
		defer b.freeze()()
		before := time.Now()
		p.AppendFunc(t.Context(), numbered("topic", 0, 0, 10), func(err error) { errs <- err })
		if took := time.Since(before); took > 50*time.Millisecond {
			t.Errorf("it waited %v", took)
		}
		if err := <-errs; !isLogUnavailable(err) || time.Since(before) > 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(before))
		}
	})
}
