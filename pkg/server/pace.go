package server

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// pace reads a large body and cuts it off when it comes slower than asked for:
// within any window that many bytes must come, or the end. A body holds memory
// and one of the requests under way while it comes.
type pace struct {
	r      io.Reader
	conn   *http.ResponseController
	window time.Duration
	least  int64     // bytes of a window
	end    time.Time // of the window
	until  time.Time // when all of it must be there

	n, next int64 // bytes so far, and those with which a new window begins
	slow    error // what a body is told that was cut off within a window
}

// paced makes the pace of x's body.
func (x *exchange) paced(rate int64, window, all time.Duration) *pace {
	p := &pace{
		conn: http.NewResponseController(x.w), window: window,
		least: max(1, int64(float64(rate)*window.Seconds())), until: time.Now().Add(all),
		slow: &notify.Error{
			Kind: notify.KindInvalid, Code: api.CodeBodyTimeout,
			Msg: "the body came slower than " + byteSize(rate) + " a second over " + window.String(),
		},
	}
	_ = p.conn.SetWriteDeadline(p.until.Add(x.srv.cfg.WriteTimeout)) // a recorder in a test has none
	p.renew()
	return p
}

// renew begins a window.
func (p *pace) renew() {
	p.next = p.n + p.least
	p.ends(time.Now().Add(p.window))
}

func (p *pace) ends(end time.Time) {
	if end.After(p.until) {
		end = p.until
	}
	p.end = end
	_ = p.conn.SetReadDeadline(end)
}

// pause makes up for a time in which nobody read.
func (p *pace) pause(d time.Duration) {
	if p != nil && d > time.Millisecond {
		p.ends(p.end.Add(d))
	}
}

func (p *pace) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if p.n += int64(n); p.n >= p.next && err == nil { // behind the end the deadline is not ours
		p.renew()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(p.until) {
		err = p.slow
	}
	return n, err
}
