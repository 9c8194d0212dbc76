package provider

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// hold keeps everybody from calling until a time: a used-up quota answers all
// who wait, not only the one who found out.
type hold struct {
	any atomic.Bool // it was ever set

	mu    sync.Mutex
	until time.Time
	code  string
}

func (h *hold) set(r *notify.Result) {
	until := time.Now().Add(r.RetryAfter)
	h.mu.Lock()
	defer h.mu.Unlock()
	if until.After(h.until) {
		h.until, h.code = until, r.Code
		h.any.Store(true)
	}
}

// err is a KindThrottled error while calls are held.
func (h *hold) err() error {
	if !h.any.Load() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until.IsZero() {
		return nil
	}
	left := time.Until(h.until)
	if left <= 0 {
		return nil
	}
	return &notify.Error{Kind: notify.KindThrottled, Code: h.code, Msg: "calls are held", RetryAfter: left}
}
