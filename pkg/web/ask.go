package web

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// part is one answer of the API on a page of several: where it could not be had,
// the others are shown all the same.
type part[T any] struct {
	V   T
	Err *notify.Error
}

// questions are asked at the same time.
type questions struct{ wg sync.WaitGroup }

func (q *questions) wait() { q.wg.Wait() }

// ask asks one of them; p is filled when wait returns.
func ask[T any](q *questions, p *part[T], question func() (T, error)) {
	q.wg.Go(func() {
		v, err := question()
		if err != nil {
			p.Err = problemOf(err)
			return
		}
		p.V = v
	})
}

// remembered keeps an answer that costs a walk over every dead letter for a
// while, so that pages left open cost little. It is the same for everybody who
// may look.
type remembered[T any] struct {
	asking singleflight.Group

	mu    sync.Mutex // never held over a question
	v     T
	until time.Time
}

const (
	rememberFor   = 10 * time.Second
	rememberTimes = 20 // an answer is kept this many times as long as it took
)

// get answers from memory, or asks. Who comes meanwhile waits for the same answer,
// also where it is an error: a question that takes its time and fails is not asked
// by each of them in turn.
func (r *remembered[T]) get(now func() time.Time, question func() (T, error)) (T, error) {
	if v, ok := r.known(now()); ok {
		return v, nil
	}
	v, err, _ := r.asking.Do("", func() (any, error) {
		began := now()
		if v, ok := r.known(began); ok { // another's answer has just come
			return v, nil
		}
		v, err := question()
		if err != nil {
			return v, err
		}
		done := now()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.v, r.until = v, done.Add(max(rememberFor, rememberTimes*done.Sub(began)))
		return v, nil
	})
	return v.(T), err
}

func (r *remembered[T]) known(at time.Time) (v T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.v, at.Before(r.until)
}

// failedSince asks how dead letters of the last while failed.
func (v *visit) failedSince(keep *remembered[api.LetterTop], d time.Duration) (api.LetterTop, error) {
	now := v.page.cfg.Now
	return keep.get(now, func() (api.LetterTop, error) {
		// Not the request's context: the next visitor is shown the answer too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx), askFor)
		defer cancel()
		return v.client.TopDeadLetters(ctx, api.LetterFilter{Since: now().Add(-d).UnixMilli()}, 200)
	})
}
