package provider

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// callHold stops all calls until a time. One call is enough to find that a quota is used up. The
// other calls are not made until then.
type callHold struct {
	any atomic.Bool // set was called at least once; if false, err needs no lock

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
	return &notify.Error{Kind: notify.KindThrottled, Code: h.code, Msg: "calls wait because the provider throttled an earlier one", RetryAfter: left}
}
