package log

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// load appends numbered records from many callers until it is told to end, and records the result
// of each.
type load struct {
	topic   string
	callers int

	mu     sync.Mutex
	acked  map[string]time.Time
	failed map[string]error
	errors map[int]int // by caller
	first  time.Time   // time of the first error
	gap    time.Duration
	last   time.Time // time of the last acknowledgement

	longest atomic.Int64 // longest Append, in ns
}

func newLoad(topic string, callers int) *load {
	return &load{topic: topic, callers: callers, acked: map[string]time.Time{}, failed: map[string]error{}, errors: map[int]int{}}
}

// run is one caller. Its records go to one partition, and it appends each record after the answer
// to the one before.
func (l *load) run(ctx context.Context, p *Producer, caller int) {
	for n := 0; ctx.Err() == nil; n++ {
		id := fmt.Sprintf("%d-%06d", caller, n)
		began := time.Now()
		err := p.Append(context.WithoutCancel(ctx), []Record{{Topic: l.topic, Partition: int32(caller % 3), Value: []byte(id)}})
		now := time.Now()
		l.longest.Store(max(l.longest.Load(), int64(now.Sub(began))))
		l.mu.Lock()
		if err != nil {
			l.failed[id] = err
			l.errors[caller]++
			if l.first.IsZero() {
				l.first = now
			}
		} else {
			if !l.last.IsZero() {
				l.gap = max(l.gap, now.Sub(l.last))
			}
			l.acked[id], l.last = now, now
		}
		l.mu.Unlock()
	}
}

// wait waits until cond returns true. It calls cond with the lock held.
func (l *load) wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		l.mu.Lock()
		ok := cond()
		l.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within 10 minutes: %s", what)
		}
	}
}

// check reads the topic and checks that every acknowledged record is there once, and in the order
// of its caller. It returns how many acknowledged records are missing, and how many records are
// there although they were answered with an error.
func (l *load) check(t *testing.T, b *broker) (lost, storedAnyway int) {
	t.Helper()
	count := make(map[string]int)
	latest := make(map[string]int)
	for _, r := range b.collect(t, l.topic) {
		id := string(r.Value)
		count[id]++
		if _, ok := l.acked[id]; !ok {
			storedAnyway++
			continue
		}
		caller, number, _ := strings.Cut(id, "-")
		n, err := strconv.Atoi(number)
		if err != nil || n < latest[caller] {
			t.Errorf("%s after %d (%v)", id, latest[caller], err)
		}
		latest[caller] = n
	}
	twice := 0
	for id := range l.acked {
		switch {
		case count[id] == 0:
			lost++
		case count[id] > 1:
			twice++
		}
	}
	if lost > 0 || twice > 0 {
		t.Errorf("of %d acknowledged %d are lost, %d are there twice", len(l.acked), lost, twice)
	}
	return lost, storedAnyway
}

// A broker is killed or frozen under load. While it is away, callers of Append, callers that wait
// for AppendFunc without a deadline, and the probe notice it. When it is back, everything
// acknowledged is there, in order, and appends continue. The default producer of the library would
// report nothing during the whole outage.
func TestBrokerAway(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct{ away, back func(k *ownKafka) }{
		"killed": {func(k *ownKafka) { k.signal(1, syscall.SIGKILL) }, func(k *ownKafka) { k.script("start") }},
		"frozen": {func(k *ownKafka) { k.signal(1, syscall.SIGSTOP) }, func(k *ownKafka) { k.signal(1, syscall.SIGCONT) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := startKafka(t, 1)
			conn := Conn{Brokers: k.brokers}
			b := newKafka(t, conn, 3)
			p := newProducer(t, ProducerConfig{Conn: conn})
			probe, err := NewProbe(ProbeConfig{Conn: conn})
			if err != nil {
				t.Fatal(err)
			}
			l := newLoad(b.topic, 8)
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop()
			wg.Go(func() { probe.Run(ctx) })
			for c := range l.callers {
				wg.Go(func() { l.run(ctx, p, c) })
			}
			l.wait(t, "1000 acknowledgements and a probe that is content", func() bool { return len(l.acked) >= 1000 && probe.Err() == nil })

			l.mu.Lock()
			before := len(l.acked)
			l.first, l.errors = time.Time{}, map[int]int{}
			l.mu.Unlock()
			l.longest.Store(0)
			gone := time.Now()
			x.away(k)
			var noticed, answered time.Duration
			wg.Go(func() {
				for probe.Err() == nil && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
				l.mu.Lock()
				noticed = time.Since(gone)
				l.mu.Unlock()
			})
			l.wait(t, "a first error", func() bool { return !l.first.IsZero() })
			asked := time.Now()
			p.AppendFunc(ctx, []Record{{Topic: b.topic, Partition: 0, Value: []byte("without a deadline")}}, func(err error) {
				l.mu.Lock()
				answered = time.Since(asked)
				l.mu.Unlock()
				if !isLogUnavailable(err) {
					t.Errorf("without a deadline: %v", err)
				}
			})
			// The broker stays away until everybody has noticed it.
			l.wait(t, "every caller has had two errors, the probe and AppendFunc one", func() bool {
				if len(l.errors) < l.callers || noticed == 0 || answered == 0 {
					return false
				}
				for _, n := range l.errors {
					if n < 2 {
						return false
					}
				}
				return true
			})
			l.mu.Lock()
			first, longest, whileAway := l.first.Sub(gone), time.Duration(l.longest.Load()), len(l.acked)
			l.mu.Unlock()
			x.back(k)
			back := time.Now()
			l.wait(t, "1000 more acknowledgements", func() bool { return len(l.acked) >= whileAway+1000 })
			again := time.Since(back)
			for end := time.Now().Add(10 * time.Minute); probe.Err() != nil; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("the probe: %v", probe.Err())
				}
			}
			stop()
			wg.Wait()
			lost, anyway := l.check(t, b)
			t.Logf("%s: first error after %.2f s, the probe's after %.2f s, AppendFunc's without a deadline after %.2f s; longest Append %.2f s; %d acknowledged before, %d in all, %d of them lost; %d answered with an error, %d of those stored; 1000 more acknowledged %.1f s after its return",
				name, first.Seconds(), noticed.Seconds(), answered.Seconds(), longest.Seconds(), before, len(l.acked), lost, len(l.failed), anyway, again.Seconds())
			for _, err := range l.failed {
				if !isLogUnavailable(err) {
					t.Errorf("an append failed with %v", err)
				}
			}
			if first > time.Minute || noticed > time.Minute || longest > time.Minute || answered > time.Minute {
				t.Error("more than a minute, even on a busy machine")
			}
		})
	}
}

// TestThreeBrokers has three brokers, each in a rack of its own.
func TestThreeBrokers(t *testing.T) {
	if testing.Short() {
		t.Skip("three brokers take long")
	}
	t.Parallel()
	k := startKafka(t, 3)
	a, err := NewAdmin(AdminConfig{Conn: Conn{Brokers: k.brokers}, Replication: 3, MinInSync: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	t.Run("a rack reads from its own broker", func(t *testing.T) { readsByRack(t, a, k.brokers) })
	t.Run("one dies", func(t *testing.T) { oneOfThreeDies(t, k, a) })
}

// oneOfThreeDies kills for good a broker that leads a partition. Everything acknowledged is still
// there, also for readers in the rack of that broker, and the other brokers continue.
func oneOfThreeDies(t *testing.T, k *ownKafka, a *Admin) {
	conn := Conn{Brokers: k.brokers}
	want := map[string]int{"three": 3}
	if _, err := a.EnsureTopics(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	c, err := a.Describe(t.Context(), "three")
	if err != nil || len(c.Brokers) != 3 || c.Brokers[2].Rack != "c" {
		t.Fatalf("%+v, %v", c, err)
	}
	if f := c.Check(a.cfg, want); len(f) > 0 {
		t.Errorf("%+v", f)
	}
	details, err := a.adm.ListTopics(t.Context(), "three")
	if err != nil {
		t.Fatal(err)
	}
	leader := details["three"].Partitions[0].Leader

	p := newProducer(t, ProducerConfig{Conn: conn})
	l := newLoad("three", 6)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for c := range l.callers {
		wg.Go(func() { l.run(ctx, p, c) })
	}
	l.wait(t, "500 acknowledgements", func() bool { return len(l.acked) >= 500 })
	l.mu.Lock()
	l.gap = 0
	l.mu.Unlock()
	k.signal(int(leader), syscall.SIGKILL)
	killed := time.Now()
	// Partition 0 is written by callers 0 and 3.
	l.wait(t, "partition 0 has a leader again", func() bool {
		for id, at := range l.acked {
			if strings.HasPrefix(id, "0-") && at.After(killed.Add(2*time.Second)) {
				return true
			}
		}
		return false
	})
	l.mu.Lock()
	var acks []time.Time
	for id, at := range l.acked {
		if strings.HasPrefix(id, "0-") || strings.HasPrefix(id, "3-") {
			acks = append(acks, at)
		}
	}
	n := len(l.acked)
	l.mu.Unlock()
	l.wait(t, "500 more acknowledgements", func() bool { return len(l.acked) >= n+500 })
	stop()
	wg.Wait()
	reader := conn
	reader.Rack = c.Brokers[leader-1].Rack
	lost, anyway := l.check(t, &broker{conn: reader, topic: "three"})
	if c, err = a.Describe(t.Context(), "three"); err != nil {
		t.Fatal(err)
	}
	findings := c.Check(AdminConfig{Replication: 3, MinInSync: 2}, want)
	t.Logf("one of three killed: no acknowledgement of its partitions for %.1f s, of all for %.1f s; %d acknowledged, %d lost; %d answered with an error, %d of those stored; found: %+v",
		longestGap(acks).Seconds(), l.gap.Seconds(), len(l.acked), lost, len(l.failed), anyway, findings)
	if len(findings) == 0 {
		t.Error("nothing is found where one of three brokers is gone")
	}
}

func longestGap(at []time.Time) (gap time.Duration) {
	slices.SortFunc(at, time.Time.Compare)
	for i := 1; i < len(at); i++ {
		gap = max(gap, at[i].Sub(at[i-1]))
	}
	return gap
}
