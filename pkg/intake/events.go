package intake

import (
	"time"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Events are callbacks for metrics; each may be nil. They are called on the
// request's goroutine and must not block.
type Events struct {
	// Accepted: n receivers are durable, now or as timers.
	Accepted func(ch notify.Channel, cat notify.Category, caller string, n int)
	// Rejected: n receivers or items were refused with code.
	Rejected func(caller, code string, n int)
	// Refused: a whole request was refused or failed.
	Refused func(caller, code string)
	// Body: a request's body of n bytes was read.
	Body func(route string, n int)
	// Done: a request was answered after d; code is empty for an answer.
	Done func(route, code string, d time.Duration)
	// Replayed: a repeated key got its first answer.
	Replayed func(caller string)
	// TakenOver: a repeated key went on with the work of a dead request.
	TakenOver func(caller string)
	// Spilled: n records went to the spill buffer instead of the log.
	Spilled func(n int)
}

func (e *Events) accepted(ch notify.Channel, cat notify.Category, caller string, n int) {
	if e.Accepted != nil && n > 0 {
		e.Accepted(ch, cat, caller, n)
	}
}

func (e *Events) rejected(caller, code string, n int) {
	if e.Rejected != nil && n > 0 {
		e.Rejected(caller, code, n)
	}
}

func (e *Events) spilled(n int) {
	if e.Spilled != nil {
		e.Spilled(n)
	}
}

// begin reports the body and returns what reports the end.
func (e *Events) begin(m request.Meta, size int) func(error) {
	if e.Body != nil {
		e.Body(m.Route, size)
	}
	if e.Done == nil && e.Refused == nil {
		return func(error) {}
	}
	start := time.Now()
	return func(err error) {
		code := ""
		if err != nil {
			code = codeOf(err)
			if e.Refused != nil {
				e.Refused(m.Caller, code)
			}
		}
		if e.Done != nil {
			e.Done(m.Route, code, time.Since(start))
		}
	}
}
