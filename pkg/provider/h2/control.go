package h2

import (
	"golang.org/x/net/http2"
)

// onSettings applies the server's SETTINGS. It returns ErrCodeNo, or the code for a GOAWAY if the
// SETTINGS are invalid. The caller holds mu.
func (c *conn) onSettings(f *http2.SettingsFrame) (code http2.ErrCode) {
	if f.HasDuplicates() {
		return http2.ErrCodeProtocol
	}
	_ = f.ForeachSetting(func(s http2.Setting) error {
		err := s.Valid()
		if err != nil {
			code = goAwayCode(err)
			return err
		}
		switch s.ID {
		case http2.SettingMaxConcurrentStreams:
			c.maxStreams = int(min(s.Val, maxWindow))
		case http2.SettingInitialWindowSize:
			change := int64(s.Val) - c.initialWindow
			c.initialWindow = int64(s.Val)
			for r := c.byAge.first; r != nil; r = r.next {
				if r.sendWindow += change; r.sendWindow > maxWindow {
					code = http2.ErrCodeFlowControl
				}
			}
		case http2.SettingMaxFrameSize:
			c.maxFrame = int(s.Val)
		case http2.SettingHeaderTableSize:
			c.enc.setLimit(s.Val)
		case http2.SettingMaxHeaderListSize:
			c.listMax = s.Val
		}
		return nil
	})
	_ = c.ctlFr.WriteSettingsAck()
	c.publishFree()
	return code
}

// onWindow increases the window of the connection or of a stream. The caller holds mu.
func (c *conn) onWindow(f *http2.WindowUpdateFrame) http2.ErrCode {
	by := int64(f.Increment)
	if f.StreamID == 0 {
		if c.sendWindow += by; c.sendWindow > maxWindow {
			return http2.ErrCodeFlowControl
		}
		return http2.ErrCodeNo
	}
	if c.neverOpened(f.StreamID) {
		return http2.ErrCodeProtocol
	}
	if r := c.streams[f.StreamID]; r != nil {
		if r.sendWindow += by; r.sendWindow > maxWindow {
			return http2.ErrCodeFlowControl
		}
	}
	return http2.ErrCodeNo
}

// onGoAway starts draining. The GOAWAY contains the id of the last request that the server will
// process. Requests with a higher id go into the queue again. The other requests wait for their
// answers. The caller holds mu.
func (c *conn) onGoAway(f *http2.GoAwayFrame) {
	if !c.draining {
		c.pool.cfg.Log.Info("the provider closes a connection", "code", f.ErrCode.String(), "reason", loggable(f.DebugData()), "streams", len(c.streams))
	}
	c.startDraining()
	for r := c.byAge.last; r != nil; {
		prev := r.prev
		if r.id > f.LastStreamID {
			r.Sent = false // the server did not process the request and never will
			c.endedRequests = c.endStream(c.endedRequests, r, Closing, true)
		}
		r = prev
	}
}

// loggable returns the part of a server's text that is safe to log: only the letters, digits and some
// punctuation among the first 100 bytes.
func loggable(b []byte) string {
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
	if c.neverOpened(f.StreamID) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	r := c.streams[f.StreamID]
	if r == nil {
		return nil
	}
	if f.ErrCode == http2.ErrCodeRefusedStream {
		r.Sent = false
		c.endedRequests = c.endStream(c.endedRequests, r, Refused, true)
	} else {
		c.endedRequests = c.endStream(c.endedRequests, r, Broken, false)
	}
	return nil
}
