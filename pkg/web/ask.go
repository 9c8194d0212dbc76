package web

import (
	"context"
	"sync"
	"time"

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
	mu    sync.Mutex
	v     T
	until time.Time
}

const (
	rememberFor   = 10 * time.Second
	rememberTimes = 20 // an answer is kept this many times as long as it took
)

func (r *remembered[T]) get(now func() time.Time, question func() (T, error)) (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	began := now()
	if began.Before(r.until) {
		return r.v, nil
	}
	v, err := question()
	if err != nil {
		return v, err
	}
	done := now()
	r.v, r.until = v, done.Add(max(rememberFor, rememberTimes*done.Sub(began)))
	return v, nil
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
