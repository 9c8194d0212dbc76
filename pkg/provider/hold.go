package provider

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// callHold stops all calls of a provider until a given time. It is used when an answer shows that a
// quota is used up: the provider would refuse the other calls too.
type callHold struct {
	any atomic.Bool // true after the first call of set(); while it is false, err() needs no lock

	mu    sync.Mutex
	until time.Time
	code  string
}

func (h *callHold) set(r *notify.Result) {
	until := time.Now().Add(r.RetryAfter)
	h.mu.Lock()
	defer h.mu.Unlock()
	if until.After(h.until) {
		h.until, h.code = until, r.Code
		h.any.Store(true)
	}
}

// err returns a KindThrottled error while calls are stopped, and nil otherwise.
func (h *callHold) err() error {
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
	return &notify.Error{Kind: notify.KindThrottled, Code: h.code, Msg: "no call is made now, because the provider throttled an earlier call", RetryAfter: left}
}
