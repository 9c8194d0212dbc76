package log

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// If a handler falls behind on one partition, the fetches of only this partition stop at the cap.
// They continue when the handler catches up.
func TestInFlightCaps(t *testing.T) {
	f := func(name string, cfg GroupConfig, most int) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const each = 3000
				b := newBroker(t, 2, "topic")
				for p := range int32(2) {
					for i := range each / 100 { // in batches, because a fetch returns whole batches
						b.append(t, numbered("topic", p, i*100, 100))
					}
				}
				var mu sync.Mutex
				var held []*Msg
				fast := 0
				cfg.Conn, cfg.Group, cfg.Topics, cfg.MaxPollRecords = b.conn, "g", []string{"topic"}, 100
				m := start(t, cfg, handlerFunc(func(_ context.Context, tp TopicPartition, msgs []*Msg) error {
					mu.Lock()
					defer mu.Unlock()
					if tp.Partition == 0 {
						held = append(held, msgs...)
						return nil
					}
					fast += len(msgs)
					for _, msg := range msgs {
						msg.Done()
					}
					return nil
				}))
				time.Sleep(10 * time.Second)
				mu.Lock()
				if len(held) > most+100 || len(held) < most/2 || fast != each {
					t.Errorf("%d held, cap %d; the other partition got %d", len(held), most, fast)
				}
				mu.Unlock()
				paused := slices.ContainsFunc(m.Stats().Partitions, func(p PartitionStats) bool {
					return p.TP.Partition == 0 && p.Paused && p.InFlight >= most && p.Lag() > 0
				})
				if !paused {
					t.Errorf("not paused: %+v", m.Stats().Partitions)
				}
				for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
					mu.Lock()
					batch := held
					held = nil
					mu.Unlock()
					slices.Reverse(batch)
					for _, msg := range batch {
						msg.Done()
					}
					if s := m.Stats(); !slices.ContainsFunc(s.Partitions, func(p PartitionStats) bool { return p.LowWater != each }) {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("stuck: %+v", m.Stats())
					}
				}
			})
		})
	}
	f("records", GroupConfig{MaxInFlight: 200}, 200)
	f("bytes", GroupConfig{MaxInFlightBytes: 600}, 200) // values of 1 to 4 digits
}

// A record that makes the handler panic is tried again alone, and goes into the poison topic after
// MaxAttempts. Its neighbours are delivered, and the process lives.
func TestPanicIsAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic", notify.TopicPoison)
		b.append(t, []Record{{Topic: "topic", Value: []byte("0")}, {Topic: "topic", Value: []byte("1")},
			{Topic: "topic", Key: []byte("k"), Value: []byte("bad"), Headers: []Header{{"h", []byte("v")}}}, {Topic: "topic", Value: []byte("3")}})
		poisoner := Poisoner{Log: newProducer(t, ProducerConfig{Conn: b.conn})}
		var mu sync.Mutex
		var attempts []int
		var panics, failures int
		finished := make(chan struct{})
		m := start(t, GroupConfig{
			Conn: b.conn, Group: "g", Topics: []string{"topic"}, MaxAttempts: 3,
			Poison: func(ctx context.Context, msg *Msg, cause error) error {
				defer close(finished)
				return poisoner.Poison(ctx, msg, cause)
			},
			Events: GroupEvents{Failed: func(_ TopicPartition, cause error) {
				mu.Lock()
				defer mu.Unlock()
				if p, ok := errors.AsType[*Panic](cause); ok && p.Value == "ouch" && len(p.Stack) > 0 {
					panics++
				} else {
					failures++
				}
			}},
		}, handlerFunc(func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
			for _, msg := range msgs {
				if string(msg.Value) == "bad" {
					mu.Lock()
					attempts = append(attempts, msg.Attempt)
					mu.Unlock()
					panic("ouch")
				}
				msg.Done()
			}
			return nil
		}))
		<-finished
		synctest.Wait()
		if err := m.wait(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(attempts, []int{1, 2, 3}) || panics != 3 || failures != 0 || m.Stats().Failures != 3 {
			t.Errorf("attempts %v, %d panics, %d failures", attempts, panics, failures)
		}
		if c := b.committed(t, "g"); c[TopicPartition{"topic", 0}] != 4 {
			t.Errorf("committed %v", c)
		}
		got := b.collect(t, notify.TopicPoison)
		if len(got) != 1 || string(got[0].Value) != "bad" || string(got[0].Key) != "k" {
			t.Fatalf("poison: %+v", got)
		}
		headers := make(map[string]string)
		for _, h := range got[0].Headers {
			headers[h.Key] = string(h.Value)
		}
		if headers["h"] != "v" || headers[HeaderOriginTopic] != "topic" || headers[HeaderOriginPartition] != "0" ||
			headers[HeaderOriginOffset] != "2" || headers[HeaderCause] != "handler panicked: ouch" {
			t.Errorf("headers %v", headers)
		}
	})
}

// A record of another producer is, together with its origin, larger than what we append. Only its
// beginning goes into the poison topic, and the records after it continue.
func TestPoisonOfALargeRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic", notify.TopicPoison)
		value := bytes.Repeat([]byte("x"), 150_000)
		b.append(t, []Record{{Topic: "topic", Key: value[:5000], Value: value, Headers: []Header{{"h", value[:50_000]}}}, {Topic: "topic", Value: []byte("next")}})
		poisoner := Poisoner{Log: newProducer(t, ProducerConfig{Conn: b.conn, MaxRecordBytes: 100_000})}
		next, aside := make(chan struct{}), make(chan error, 10)
		m := start(t, GroupConfig{
			Conn: b.conn, Group: "g", Topics: []string{"topic"}, MaxAttempts: 2,
			Poison: func(ctx context.Context, msg *Msg, cause error) error {
				err := poisoner.Poison(ctx, msg, cause)
				aside <- err
				return err
			},
		},
			handlerFunc(func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				for _, msg := range msgs {
					if string(msg.Value) != "next" {
						return errors.New(strings.Repeat("bad ", 10_000))
					}
					msg.Done()
					close(next)
				}
				return nil
			}))
		<-next
		if err := <-aside; err != nil {
			t.Error(err)
		}
		if err := m.wait(); err != nil {
			t.Fatal(err)
		}
		if c := b.committed(t, "g"); c[TopicPartition{"topic", 0}] != 2 {
			t.Errorf("committed %v", c)
		}
		got := b.collect(t, notify.TopicPoison)
		if len(got) != 1 || len(got[0].Value) == 0 || !bytes.HasPrefix(value, got[0].Value) {
			t.Fatalf("%d records put aside", len(got))
		}
		headers := map[string]string{}
		for _, h := range got[0].Headers {
			headers[h.Key] = string(h.Value)
		}
		if headers[HeaderOriginTopic] != "topic" || headers[HeaderOriginOffset] != "0" || headers[HeaderCut] != "150000" || !strings.HasPrefix(headers[HeaderCause], "bad ") {
			t.Errorf("of %q at %q, %q bytes, for %.10q", headers[HeaderOriginTopic], headers[HeaderOriginOffset], headers[HeaderCut], headers[HeaderCause])
		}
	})
}

// Without a Poison hook a failing record is tried until it succeeds.
func TestFailedHandleIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		b.append(t, numbered("topic", 0, 0, 3))
		tries := 0
		done := make(chan struct{})
		start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}}, handlerFunc(
			func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				if tries++; tries < 30 {
					return errors.New("store away")
				}
				for _, msg := range msgs {
					msg.Done()
					if msg.Offset == 2 {
						close(done)
					}
				}
				return nil
			}))
		before := time.Now()
		<-done
		if took := time.Since(before); took < 10*time.Second {
			t.Errorf("29 failures took only %v", took)
		}
	})
}

// A record of a newer release stops its partition. The records before it are done. The record and
// those after it are neither handed out again nor committed. The reason is reported once, and the
// next member continues at this record.
func TestRecordOfANewerReleaseHoldsItsPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 2, "topic")
		b.append(t, append(numbered("topic", 0, 0, 6), numbered("topic", 1, 0, 6)...))
		var mu sync.Mutex
		var told []string
		handed, other, failed := map[int64]int{}, 0, 0
		cfg := GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}, MaxAttempts: 2, RevokeWait: 5 * time.Second, Events: GroupEvents{
			Failed: func(TopicPartition, error) { mu.Lock(); failed++; mu.Unlock() },
			Held: func(tp TopicPartition, cause error) {
				mu.Lock()
				told = append(told, tp.String()+": "+cause.Error())
				mu.Unlock()
			},
		}, Poison: func(context.Context, *Msg, error) error {
			t.Error("a record is put aside")
			return nil
		}}
		m := start(t, cfg, handlerFunc(func(_ context.Context, tp TopicPartition, msgs []*Msg) error {
			mu.Lock()
			defer mu.Unlock()
			for _, msg := range msgs {
				if tp.Partition == 0 && msg.Offset == 3 {
					handed[3]++
					return notify.Newer("a record", 2, 1)
				}
			}
			for _, msg := range msgs {
				if tp.Partition == 0 {
					handed[msg.Offset]++
				} else {
					other++
				}
				msg.Done()
			}
			return nil
		}))
		time.Sleep(time.Hour)
		synctest.Wait()
		mu.Lock()
		if handed[3] != 2 || handed[0] != 1 || handed[2] != 1 || handed[4]+handed[5] > 0 || other != 6 || failed > 0 {
			t.Errorf("handed out %v, %d of the other partition, %d failures", handed, other, failed)
		}
		if len(told) != 1 || !strings.HasPrefix(told[0], "topic/0: offset 3: a record has version 2") {
			t.Errorf("told %q", told)
		}
		mu.Unlock()
		for _, p := range m.Stats().Partitions {
			if want := p.TP.Partition == 0; errors.Is(p.Held, notify.ErrNewer) != want {
				t.Errorf("%s held: %v", p.TP, p.Held)
			}
		}
		before := time.Now()
		if err := m.wait(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(before); took > time.Second {
			t.Errorf("stopping took %v", took)
		}
		if at := b.committed(t, "g"); at[TopicPartition{"topic", 0}] != 3 || at[TopicPartition{"topic", 1}] != 6 {
			t.Errorf("committed %v", at)
		}
		var next []int64
		done := make(chan struct{})
		cfg.Events, cfg.Poison = GroupEvents{}, nil
		start(t, cfg, handlerFunc(func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
			for _, msg := range msgs {
				next = append(next, msg.Offset)
				msg.Done()
				if msg.Offset == 5 {
					close(done)
				}
			}
			return nil
		}))
		<-done
		if !slices.Equal(next, []int64{3, 4, 5}) {
			t.Errorf("the member of the newer release met %v", next)
		}
	})
}
