package embedded

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/log"
)

// holder is a handler that keeps its records until it is told to mark some.
type holder struct {
	mu   sync.Mutex
	msgs []*log.Msg
	more chan struct{} // a token: msgs has grown
}

func (h *holder) Assigned(context.Context, log.TopicPartition) log.PartitionHandler { return h }

func (h *holder) Handle(_ context.Context, msgs []*log.Msg) error {
	h.mu.Lock()
	h.msgs = append(h.msgs, msgs...)
	h.mu.Unlock()
	select {
	case h.more <- struct{}{}:
	default:
	}
	return nil
}

// Drain leaves what is not marked to the next owner.
func (h *holder) Drain(context.Context) {}

// has waits for n records and returns them, checked for their order.
func (h *holder) has(t *testing.T, n int) []*log.Msg {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		h.mu.Lock()
		msgs := h.msgs
		h.mu.Unlock()
		if len(msgs) >= n {
			for i, m := range msgs {
				if m.Offset != msgs[0].Offset+int64(i) {
					t.Fatalf("offset %d at place %d behind %d", m.Offset, i, msgs[0].Offset)
				}
			}
			return msgs
		}
		select {
		case <-h.more:
		case <-limit:
			t.Fatalf("%d records in a minute, want %d", len(msgs), n)
		}
	}
}

// join runs a member that reads locally; stop leaves the group and returns when
// it has.
func join(t *testing.T, b *Broker, change func(*log.GroupConfig)) (g *log.Group, h *holder, stop func()) {
	t.Helper()
	h = &holder{more: make(chan struct{}, 1)}
	cfg := log.GroupConfig{
		Conn:  log.Conn{Brokers: []string{b.Addr()}, Dial: b.Dial, Local: b.Local()},
		Group: "g", Topics: []string{"t"}, CommitEvery: 10 * time.Millisecond,
	}
	change(&cfg)
	g, err := log.NewGroup(cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return g, h, stop
}

// A group that reads locally commits the low-water mark and nothing above, and
// goes on there; it holds no more than it may.
func TestGroupReadsLocally(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir(), Topics: map[string]int{"t": 1}, SegmentBytes: 4 << 10, Durability: PageCache})
	b.fill(t, "t", 0, 0, 60, 300)
	if err := writeEndsIfMoved(b); err != nil {
		t.Fatal(err)
	}
	_, h, stop := join(t, b, func(*log.GroupConfig) {})
	for i, m := range h.has(t, 60) {
		if i != 7 && i != 30 {
			m.Done()
		}
	}
	stop()
	g, h, stop := join(t, b, func(*log.GroupConfig) {})
	if msgs := h.has(t, 53); msgs[0].Offset != 7 {
		t.Fatalf("it goes on at %d, and 7 is not done", msgs[0].Offset)
	}
	b.fill(t, "t", 0, 60, 5, 300)
	b.Appended(log.TopicPartition{Topic: "t"}, 65)
	for _, m := range h.has(t, 58) {
		m.Done()
	}
	if st := g.Stats().Partitions[0]; st.LowWater != 65 || st.HighWater != 65 || st.InFlight != 0 {
		t.Fatalf("%+v", st)
	}
	stop()

	// Read in batches of one record: it stops when ten are in flight.
	b.fill(t, "t", 0, 65, 400, 3000)
	b.Appended(log.TopicPartition{Topic: "t"}, 465)
	g, h, _ = join(t, b, func(c *log.GroupConfig) { c.MaxInFlight = 10 })
	const readAtOnce = readAhead/3000 + 1
	msgs := h.has(t, 10)
	if msgs[0].Offset != 65 {
		t.Fatalf("it goes on at %d", msgs[0].Offset)
	}
	if st := g.Stats().Partitions[0]; st.InFlight > 10+readAtOnce || !st.Paused {
		t.Fatalf("%+v", st)
	}
	for done := 0; done < 400; {
		msgs := h.has(t, done+1)
		for _, m := range msgs[done:] {
			m.Done()
		}
		done = len(msgs)
	}
}

// Of a partition whose records were trimmed under it a group begins anew at what
// is left.
func TestGroupFindsItsPlaceGone(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir(), Topics: map[string]int{"t": 1}, SegmentBytes: 4 << 10, Durability: PageCache})
	b.fill(t, "t", 0, 0, 60, 3000)
	if err := writeEndsIfMoved(b); err != nil {
		t.Fatal(err)
	}
	var told sync.Once
	trouble := make(chan struct{})
	_, h, _ := join(t, b, func(c *log.GroupConfig) {
		c.MaxInFlight = 5
		c.RetryBackoff = time.Millisecond
		c.Events.Trouble = func(error) { told.Do(func() { close(trouble) }) }
	})
	msgs := h.has(t, 5)
	if err := b.TrimOnce(map[string]map[int32]int64{"t": {0: 59}}); err != nil {
		t.Fatal(err)
	}
	for _, m := range msgs {
		m.Done()
	}
	limit := time.After(time.Minute)
	for {
		h.mu.Lock()
		last := h.msgs[len(h.msgs)-1].Offset
		for _, m := range h.msgs {
			m.Done()
		}
		h.mu.Unlock()
		if last == 59 {
			break
		}
		select {
		case <-h.more:
		case <-limit:
			t.Fatalf("it stands at %d", last)
		}
	}
	<-trouble
}
