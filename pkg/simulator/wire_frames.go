package simulator

import (
	"context"

	"golang.org/x/net/http2"
)

func (c *wireConn) onFrame(f http2.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.signal()
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		return c.onHeaders(f)
	case *http2.DataFrame:
		return c.onData(f)
	case *http2.SettingsFrame:
		return c.onSettings(f)
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			c.answerWindow += int64(f.Increment)
		} else if s := c.streams[f.StreamID]; s != nil {
			s.answerWindow += int64(f.Increment)
		}
		c.windowGrew.Broadcast()
	case *http2.RSTStreamFrame:
		c.srv.updateStats(func(s *WireStats) { s.Resets++ })
		if s := c.streams[f.StreamID]; s != nil {
			delete(c.streams, f.StreamID)
			if s.cancel != nil {
				s.cancel()
			}
			c.windowGrew.Broadcast()
		}
	case *http2.PingFrame:
		c.srv.updateStats(func(s *WireStats) { s.Pings++ })
		if !f.IsAck() {
			_ = c.outFramer.WritePing(true, f.Data)
		}
	case *http2.PushPromiseFrame, *http2.ContinuationFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// onSettings handles a SETTINGS frame: settings of the caller, or the caller's acknowledgement of
// the server's settings. c.mu is locked.
func (c *wireConn) onSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return c.onAck()
	}
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingInitialWindowSize:
			for _, st := range c.streams {
				st.answerWindow += int64(s.Val) - c.initialAnswerWindow
			}
			c.initialAnswerWindow = int64(s.Val)
			c.windowGrew.Broadcast()
		case http2.SettingMaxFrameSize:
			c.frameMax = int(s.Val)
		case http2.SettingHeaderTableSize:
			c.enc.SetMaxDynamicTableSizeLimit(s.Val)
		}
		return nil
	})
	_ = c.outFramer.WriteSettingsAck()
	return err
}

// onAck makes the oldest unacknowledged settings of the server effective. c.mu is locked.
func (c *wireConn) onAck() error {
	if len(c.unackedSettings) == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.srv.updateStats(func(s *WireStats) { s.Acked++ })
	w := c.unackedSettings[0]
	c.unackedSettings = c.unackedSettings[1:]
	for _, s := range c.streams {
		s.bodyWindow += int64(w.Window) - c.newStreamWindow()
	}
	c.ackedSettings = &w
	// The caller must now shrink its header table. If it does not, it later refers to removed
	// entries, and the decoder returns an error.
	dec := c.inFramer.ReadMetaHeaders
	dec.SetAllowedMaxDynamicTableSize(uint32(w.HeaderTable))
	if w.HeaderTable < 4096 {
		dec.SetMaxDynamicTableSize(uint32(w.HeaderTable))
	}
	return nil
}

// newStreamWindow returns how many bytes the caller may send on a new stream. c.mu is locked.
func (c *wireConn) newStreamWindow() int64 {
	if c.ackedSettings == nil {
		return 65535
	}
	return int64(c.ackedSettings.Window)
}

// overStreamLimit returns true if one more stream would exceed the limit. The caller may use the
// settings that it has acknowledged, or any later settings that were sent to it. So the highest of
// their limits counts. c.mu is locked.
func (c *wireConn) overStreamLimit() bool {
	if c.ackedSettings == nil {
		return false
	}
	m := c.ackedSettings.Streams
	for _, w := range c.unackedSettings {
		m = max(m, w.Streams)
	}
	return len(c.streams) >= m
}

// onHeaders begins a stream, or ends the body of a stream with a trailer. c.mu is locked.
func (c *wireConn) onHeaders(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if s := c.streams[id]; s != nil { // a trailer
		if !f.StreamEnded() {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		c.runHandler(s)
		return nil
	}
	switch {
	case id%2 == 0 || id <= c.lastStream && !c.goingAway:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case c.goingAway && id > c.goAwayStream:
		c.srv.updateStats(func(s *WireStats) { s.Rejected++ })
		return nil
	}
	c.lastStream = max(c.lastStream, id)
	if c.overStreamLimit() {
		c.srv.updateStats(func(s *WireStats) { s.Over++; s.Refused++ })
		c.resetStream(id, http2.ErrCodeRefusedStream)
		return nil
	}
	s := &wireStream{id: id, head: f.Fields, answerWindow: c.initialAnswerWindow, bodyWindow: c.newStreamWindow()}
	c.streams[id] = s
	if f.StreamEnded() {
		c.runHandler(s)
	}
	return nil
}

// onData adds bytes to the body of a request. Then it enlarges the windows of the stream and the
// connection by the same number of bytes. c.mu is locked.
func (c *wireConn) onData(f *http2.DataFrame) error {
	n := int64(f.Length)
	if c.bodyWindow -= n; c.bodyWindow < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	if n > 0 {
		c.bodyWindow += n
		_ = c.outFramer.WriteWindowUpdate(0, uint32(n))
	}
	s := c.streams[f.StreamID]
	if s == nil {
		return nil
	}
	if s.bodyWindow -= n; n > 0 && s.bodyWindow < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	s.body = append(s.body, f.Data()[:min(len(f.Data()), maxWireBody-len(s.body))]...)
	if f.StreamEnded() {
		c.runHandler(s)
		return nil
	}
	if n > 0 {
		s.bodyWindow += n
		_ = c.outFramer.WriteWindowUpdate(f.StreamID, uint32(n))
		c.srv.updateStats(func(s *WireStats) { s.Updates++ })
	}
	return nil
}

// runHandler starts the handler of a complete request. c.mu is locked.
func (c *wireConn) runHandler(s *wireStream) {
	ctx, cancel := context.WithCancel(c.ctx)
	s.cancel = cancel
	c.requests.Go(func() {
		defer cancel()
		c.handleRequest(ctx, s)
	})
}
