package h2

import (
	"golang.org/x/net/http2"
)

// onSettings obeys the server's. The lock is held.
func (c *conn) onSettings(f *http2.SettingsFrame) (code http2.ErrCode) {
	if f.HasDuplicates() {
		return http2.ErrCodeProtocol
	}
	_ = f.ForeachSetting(func(s http2.Setting) error {
		err := s.Valid()
		if err != nil {
			code = codeOf(err)
			return err
		}
		switch s.ID {
		case http2.SettingMaxConcurrentStreams:
			c.limit = int(min(s.Val, maxWindow))
		case http2.SettingInitialWindowSize:
			by := int64(s.Val) - c.initial
			c.initial = int64(s.Val)
			for r := c.age.first; r != nil; r = r.next {
				if r.window += by; r.window > maxWindow {
					code = http2.ErrCodeFlowControl
				}
			}
		case http2.SettingMaxFrameSize:
			c.frame = int(s.Val)
		case http2.SettingHeaderTableSize:
			c.enc.setLimit(s.Val)
		case http2.SettingMaxHeaderListSize:
			c.listMax = s.Val
		}
		return nil
	})
	_ = c.ctlFr.WriteSettingsAck()
	c.recount()
	return code
}

// onWindow gives bodies that wait more room. The lock is held.
func (c *conn) onWindow(f *http2.WindowUpdateFrame) http2.ErrCode {
	by := int64(f.Increment)
	if f.StreamID == 0 {
		if c.window += by; c.window > maxWindow {
			return http2.ErrCodeFlowControl
		}
		return http2.ErrCodeNo
	}
	if c.idle(f.StreamID) {
		return http2.ErrCodeProtocol
	}
	if r := c.streams[f.StreamID]; r != nil {
		if r.window += by; r.window > maxWindow {
			return http2.ErrCodeFlowControl
		}
	}
	return http2.ErrCodeNo
}

// onGoAway leaves the connection: what the server will not look at is sent on
// another, the rest is waited for. The lock is held.
func (c *conn) onGoAway(f *http2.GoAwayFrame) {
	if !c.left {
		c.pool.cfg.Log.Info("a provider's connection is being closed by the server", "code", f.ErrCode.String(), "reason", words(f.DebugData()), "streams", len(c.streams))
	}
	c.leave()
	for r := c.age.last; r != nil; {
		prev := r.prev
		if r.id > f.LastStreamID {
			r.Sent = false // it was not looked at, and never will be
			c.finished = c.end(c.finished, r, Closing, true)
		}
		r = prev
	}
}

// words is what may be logged of a server's own text.
func words(b []byte) string {
	b = b[:min(len(b), 100)]
	out := make([]byte, 0, len(b))
	for _, x := range b {
		if x == ' ' || x >= '0' && x <= '9' || x >= 'A' && x <= 'Z' || x >= 'a' && x <= 'z' || x == ':' || x == '_' {
			out = append(out, x)
		}
	}
	return string(out)
}

func (c *conn) onReset(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle(f.StreamID) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	r := c.streams[f.StreamID]
	if r == nil {
		return nil
	}
	if f.ErrCode == http2.ErrCodeRefusedStream {
		r.Sent = false
		c.finished = c.end(c.finished, r, Refused, true)
	} else {
		c.finished = c.end(c.finished, r, Broken, false)
	}
	return nil
}
