package log

import (
	"context"
	"crypto/rand"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// readBytes counts what is read from each broker, by its address.
type readBytes struct {
	mu sync.Mutex
	by map[string]int
}

func (r *readBytes) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &countedConn{c, r, address}, nil
}

func (r *readBytes) of(address string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by[address]
}

type countedConn struct {
	net.Conn
	to      *readBytes
	address string
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.to.mu.Lock()
	defer c.to.mu.Unlock()
	if c.to.by == nil {
		c.to.by = map[string]int{}
	}
	c.to.by[c.address] += n
	return n, err
}

// readsByRack has members of each rack read the same records, and one without a rack. A
// member reads all of them from the broker in its rack; without a rack it reads from the
// leaders. brokers have the racks a, b and c, in this order.
func readsByRack(t *testing.T, a *Admin, brokers []string) {
	const parts, each, size = 3, 8, 128 << 10
	if _, err := a.EnsureTopics(t.Context(), map[string]int{"racks": parts}); err != nil {
		t.Fatal(err)
	}
	details, err := a.adm.ListTopics(t.Context(), "racks")
	if err != nil {
		t.Fatal(err)
	}
	p := newProducer(t, ProducerConfig{Conn: Conn{Brokers: brokers}, AppendTimeout: time.Minute})
	leaders := map[string]int{} // bytes in the partitions that each broker leads
	for part := range int32(parts) {
		leaders[brokers[details["racks"].Partitions[part].Leader-1]] += each * size
		var recs []Record
		for range each {
			value := make([]byte, size)
			_, _ = rand.Read(value) // never fails; random bytes do not become smaller by compression
			recs = append(recs, Record{Topic: "racks", Partition: part, Value: value})
		}
		if err := p.Append(t.Context(), recs); err != nil {
			t.Fatal(err)
		}
	}
	appended := parts * each
	for i, rack := range []string{"", "a", "b", "c"} {
		var read readBytes
		seen := make(chan struct{}, 1000)
		m := start(t, GroupConfig{Conn: Conn{Brokers: brokers, Rack: rack, Dial: read.dial}, Group: "rack-" + rack, Topics: []string{"racks"}},
			handlerFunc(func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				for _, m := range msgs {
					m.Done()
					seen <- struct{}{}
				}
				return nil
			}))
		await := func(n int) {
			for range n {
				select {
				case <-seen:
				case <-time.After(5 * time.Minute):
					t.Fatalf("rack %q: records are missing", rack)
				}
			}
		}
		await(appended)
		want := leaders
		if rack != "" {
			want = map[string]int{brokers[i-1]: parts * each * size}
		}
		for _, b := range brokers {
			if got := read.of(b); got < want[b] || got >= want[b]+size {
				t.Errorf("rack %q: %d bytes read from %s, want %d and less than a record more", rack, got, b, want[b])
			}
		}
		var took []time.Duration
		for n := range 21 {
			began := time.Now()
			if err := p.Append(t.Context(), []Record{{Topic: "racks", Partition: int32(n % parts), Value: []byte("x")}}); err != nil {
				t.Fatal(err)
			}
			appended++
			await(1)
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		t.Logf("rack %q: from an append to its record, median of %d: %s, longest %s", rack, len(took), took[len(took)/2], took[len(took)-1])
		if err := m.wait(); err != nil {
			t.Error(err)
		}
	}
}
