package redis

import (
	"context"
	"errors"
	"sync"
	"time"

	client "github.com/redis/go-redis/v9"
)

// longestWait is the longest time for which a receiver waits without looking at the queue. A
// Redis that was emptied or replaced adds no stream entry for the messages that it lost.
const longestWait = 5 * time.Second

// followFor is how long one XREAD of the follower waits.
const followFor = time.Second

// wake wakes the receivers of this process that wait for messages of a queue. While any
// receiver waits, one goroutine (follow) reads the queue's stream for all of them, on one
// connection. It ends within followFor after the last receiver has left.
type wake struct {
	q *queue

	mu        sync.Mutex    // guards the fields below
	waiting   int           // receivers of this process
	following bool          // follow runs
	streamEnd string        // the last entry of the stream that this process knows
	changed   chan struct{} // closed when streamEnd advances; nil: no receiver waits for that
}

func (w *wake) addReceiver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting++
}

func (w *wake) removeReceiver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting--
}

// advance moves streamEnd to a later id and wakes the receivers that wait.
func (w *wake) advance(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.advanceLocked(id)
}

// advanceLocked is advance with mu held.
func (w *wake) advanceLocked(id string) {
	if !streamIDAfter(id, w.streamEnd) {
		return
	}
	w.streamEnd = id
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// wait waits until the stream has an entry after end, at most us microseconds (-1: no
// bound) and at most longestWait. It also returns when ctx ends or the Store closes.
func (w *wake) wait(ctx context.Context, us int64, end string) {
	w.mu.Lock()
	if streamIDAfter(w.streamEnd, end) {
		// The stream got an entry after the script ran, so the receiver must look again. Or
		// Redis was emptied and end is the new end, so streamEnd goes back to it.
		w.streamEnd = end
		w.mu.Unlock()
		return
	}
	w.advanceLocked(end)
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

// follow reads the stream while receivers wait, and advances streamEnd.
func (w *wake) follow() {
	s, stream := w.q.s, w.q.keys[len(w.q.keys)-1]
	ctx := context.Background() // Close ends the XREAD when it closes the client
	for {
		w.mu.Lock()
		if w.waiting == 0 || closed(s.closing) {
			w.following = false
			w.mu.Unlock()
			return
		}
		end := w.streamEnd
		w.mu.Unlock()
		streams, err := s.c.XRead(ctx, &client.XReadArgs{Streams: []string{stream, end}, Count: 1, Block: followFor}).Result()
		switch {
		case errors.Is(err, client.Nil):
		case err != nil:
			// Meanwhile receivers look at the queue when their wait ends, and get the error.
			select {
			case <-time.After(s.cfg.Timeout):
			case <-s.closing:
			}
		default:
			w.advance(streams[0].Messages[0].ID)
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
