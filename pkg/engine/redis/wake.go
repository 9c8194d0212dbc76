package redis

import (
	"context"
	"errors"
	"sync"
	"time"

	client "github.com/redis/go-redis/v9"
)

// longestWait bounds how long a receiver goes without looking: a Redis that was
// emptied or replaced has forgotten what it should have told.
const longestWait = 5 * time.Second

// followFor is how long a follower waits at the stream in one call.
const followFor = time.Second

// wake tells the receivers of a process that wait at a queue. While any waits,
// one follower stands at the end of the queue's stream for all of them, on one
// connection; it ends within followFor after the last has left.
type wake struct {
	q *queue

	mu        sync.Mutex
	waiting   int
	following bool
	seen      string        // end of the stream as far as anybody here knows
	changed   chan struct{} // closed when seen moves
}

func (w *wake) enter() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting++
}

func (w *wake) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting--
}

// saw moves the end of the stream and wakes who waits behind it.
func (w *wake) saw(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moveTo(id)
}

// moveTo is saw with mu held.
func (w *wake) moveTo(id string) {
	if !newer(id, w.seen) {
		return
	}
	w.seen = id
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// wait returns when the stream has moved past end, after us microseconds (-1:
// not known), when ctx ends, or now and then.
func (w *wake) wait(ctx context.Context, us int64, end string) {
	w.mu.Lock()
	if newer(w.seen, end) {
		// It moved since the script ran: look again. Or Redis was emptied, and
		// its end is what it is now.
		w.seen = end
		w.mu.Unlock()
		return
	}
	w.moveTo(end)
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	changed := w.changed
	if !w.following && w.q.s.cfg.clock == nil {
		w.following = true
		w.q.s.followers.Go(w.follow)
	}
	w.mu.Unlock()

	d := longestWait
	if us >= 0 {
		d = min(d, time.Duration(us)*time.Microsecond)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-ctx.Done():
	case <-w.q.s.closing:
	}
}

// follow stands at the end of the stream while anybody waits.
func (w *wake) follow() {
	s, stream := w.q.s, w.q.keys[len(w.q.keys)-1]
	ctx := context.Background() // ends with the client, which Close closes
	for {
		w.mu.Lock()
		if w.waiting == 0 || closed(s.closing) {
			w.following = false
			w.mu.Unlock()
			return
		}
		end := w.seen
		w.mu.Unlock()
		streams, err := s.c.XRead(ctx, &client.XReadArgs{Streams: []string{stream, end}, Count: 1, Block: followFor}).Result()
		switch {
		case errors.Is(err, client.Nil):
		case err != nil:
			// Receivers find out by themselves; until then they look by time.
			select {
			case <-time.After(s.cfg.Timeout):
			case <-s.closing:
			}
		default:
			w.saw(streams[0].Messages[0].ID)
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
