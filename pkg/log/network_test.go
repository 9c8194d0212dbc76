package log

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// wire is the network of one process. After a cut, the process is gone for the broker and for the
// other members.
type wire struct {
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	mu    sync.Mutex
	conns []net.Conn
	cut   bool
}

func (b *broker) wire() (*wire, Conn) {
	w := &wire{dial: b.conn.Dial}
	if w.dial == nil {
		w.dial = (&net.Dialer{}).DialContext
	}
	conn := b.conn
	conn.Dial = w.connect
	return w, conn
}

var errCut = errors.New("the network is cut")

func (w *wire) connect(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := w.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		c.Close()
		return nil, errCut
	}
	w.conns = append(w.conns, c)
	return c, nil
}

func (w *wire) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for _, c := range w.conns {
		c.Close()
	}
}

func (w *wire) killed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut
}

// freeze makes the broker accept requests and answer none, as SIGSTOP would. The returned function
// ends this for later requests.
func (b *broker) freeze() (thaw func()) {
	var mu sync.Mutex
	frozen := true
	b.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		b.KeepControl()
		return nil, nil, frozen
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		frozen = false
	}
}

// commitLog records every offset commit that reaches the broker.
type commitLog struct {
	mu      sync.Mutex
	at      map[TopicPartition]int64
	rewinds int
	commits int
	unseen  bool // a real broker shows nobody its requests
}

func (b *broker) watchCommits() *commitLog {
	l := &commitLog{at: make(map[TopicPartition]int64), unseen: b.Cluster == nil}
	if l.unseen {
		return l
	}
	b.ControlKey(int16(kmsg.OffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.KeepControl()
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, t := range r.(*kmsg.OffsetCommitRequest).Topics {
			for _, p := range t.Partitions {
				tp := TopicPartition{t.Topic, p.Partition}
				l.commits++
				if p.Offset < l.at[tp] {
					l.rewinds++
				}
				l.at[tp] = p.Offset
			}
		}
		return nil, nil, false
	})
	return l
}

func (l *commitLog) check(fail func(string, ...any)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.unseen && (l.rewinds > 0 || l.commits == 0) {
		fail("%d of %d commits went back", l.rewinds, l.commits)
	}
}
