package redis

import (
	"context"
	"errors"
	"sync"
	"time"

	client "github.com/redis/go-redis/v9"
)

// longestWait is the longest time for which a receiver waits before it checks the queue
// again. The limit is needed because a Redis that was emptied or replaced has lost the
// stream entry that would wake the receiver.
const longestWait = 5 * time.Second

// followFor is how long the goroutine follow waits for an entry in one XREAD.
const followFor = time.Second

// wake wakes the receivers of this process that wait for messages of a queue. While any
// receiver waits, one goroutine (follow) reads the queue's stream for all receivers, on one
// connection. The goroutine ends within followFor after the last receiver has stopped
// waiting.
type wake struct {
	q *queue

	mu        sync.Mutex    // guards the fields below
	waiting   int           // number of receivers in this process
	following bool          // the goroutine follow runs
	streamEnd string        // id of the latest stream entry that this process has seen
	changed   chan struct{} // closed when streamEnd changes; nil: no receiver waits for a change
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

// advance sets streamEnd to id, if id is later, and wakes the receivers that wait.
func (w *wake) advance(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.advanceLocked(id)
}

// advanceLocked does the same as the method advance, for a caller that already holds mu.
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

// wait waits until the stream has an entry that is later than lastID. It waits at most
// maxMicros microseconds and at most longestWait. If maxMicros is -1, only longestWait
// counts. wait also returns when ctx ends or the Store closes.
func (w *wake) wait(ctx context.Context, maxMicros int64, lastID string) {
	w.mu.Lock()
	if streamIDAfter(w.streamEnd, lastID) {
		// streamEnd can be later than lastID for two reasons. Either the stream got an entry
		// after the script ran, so the receiver must check the queue again. Or Redis was
		// emptied, and lastID is the last id of the new stream, so streamEnd must be set back
		// to lastID.
		w.streamEnd = lastID
		w.mu.Unlock()
		return
	}
	w.advanceLocked(lastID)
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
	if maxMicros >= 0 {
		d = min(d, time.Duration(maxMicros)*time.Microsecond)
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

// follow reads the stream while receivers wait, and sets streamEnd to each new entry.
func (w *wake) follow() {
	s, stream := w.q.s, w.q.keys[len(w.q.keys)-1]
	ctx := context.Background() // Close ends the XREAD because it closes the client
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
			// Receivers check the queue when their wait ends, and get the error themselves. So
			// this goroutine only waits before it tries again.
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
