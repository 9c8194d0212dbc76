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
			c.window += int64(f.Increment)
		} else if s := c.streams[f.StreamID]; s != nil {
			s.window += int64(f.Increment)
		}
		c.room.Broadcast()
	case *http2.RSTStreamFrame:
		c.srv.count(func(s *WireStats) { s.Resets++ })
		if s := c.streams[f.StreamID]; s != nil {
			delete(c.streams, f.StreamID)
			if s.cancel != nil {
				s.cancel()
			}
			c.room.Broadcast()
		}
	case *http2.PingFrame:
		c.srv.count(func(s *WireStats) { s.Pings++ })
		if !f.IsAck() {
			_ = c.ctl.WritePing(true, f.Data)
		}
	case *http2.PushPromiseFrame, *http2.ContinuationFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// onSettings obeys the caller's. The lock is held.
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
				st.window += int64(s.Val) - c.initial
			}
			c.initial = int64(s.Val)
			c.room.Broadcast()
		case http2.SettingMaxFrameSize:
			c.frameMax = int(s.Val)
		case http2.SettingHeaderTableSize:
			c.enc.SetMaxDynamicTableSizeLimit(s.Val)
		}
		return nil
	})
	_ = c.ctl.WriteSettingsAck()
	return err
}

// onAck: from here on the caller keeps to what it was told. The lock is held.
func (c *wireConn) onAck() error {
	if len(c.said) == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.srv.count(func(s *WireStats) { s.Acked++ })
	w := c.said[0]
	c.said = c.said[1:]
	for _, s := range c.streams {
		s.allowed += int64(w.Window) - c.windowOf()
	}
	c.acked = &w
	// A caller that does not shrink its table now refers to what is gone.
	dec := c.fr.ReadMetaHeaders
	dec.SetAllowedMaxDynamicTableSize(uint32(w.HeaderTable))
	if w.HeaderTable < 4096 {
		dec.SetMaxDynamicTableSize(uint32(w.HeaderTable))
	}
	return nil
}

// windowOf is what a new stream may send. The lock is held.
func (c *wireConn) windowOf() int64 {
	if c.acked == nil {
		return 65535
	}
	return int64(c.acked.Window)
}

// over reports whether one stream more is too many. Until a caller has
// acknowledged another limit, it may go by either. The lock is held.
func (c *wireConn) over() bool {
	if c.acked == nil {
		return false
	}
	m := c.acked.Streams
	for _, w := range c.said {
		m = max(m, w.Streams)
	}
	return len(c.streams) >= m
}

// onHeaders begins a stream. The lock is held.
func (c *wireConn) onHeaders(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if s := c.streams[id]; s != nil { // a trailer
		if !f.StreamEnded() {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		c.begin(s)
		return nil
	}
	switch {
	case id%2 == 0 || id <= c.last && !c.away:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case c.away && id > c.final:
		c.srv.count(func(s *WireStats) { s.Rejected++ })
		return nil
	}
	c.last = max(c.last, id)
	if c.over() {
		c.srv.count(func(s *WireStats) { s.Over++; s.Refused++ })
		c.rst(id, http2.ErrCodeRefusedStream)
		return nil
	}
	s := &wireStream{id: id, head: f.Fields, window: c.initial, allowed: c.windowOf()}
	c.streams[id] = s
	if f.StreamEnded() {
		c.begin(s)
	}
	return nil
}

// onData takes a piece of a body and asks for the next. The lock is held.
func (c *wireConn) onData(f *http2.DataFrame) error {
	n := int64(f.Length)
	if c.allowed -= n; c.allowed < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	if n > 0 {
		c.allowed += n
		_ = c.ctl.WriteWindowUpdate(0, uint32(n))
	}
	s := c.streams[f.StreamID]
	if s == nil {
		return nil
	}
	if s.allowed -= n; n > 0 && s.allowed < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	s.body = append(s.body, f.Data()[:min(len(f.Data()), maxWireBody-len(s.body))]...)
	if f.StreamEnded() {
		c.begin(s)
		return nil
	}
	if n > 0 {
		s.allowed += n
		_ = c.ctl.WriteWindowUpdate(f.StreamID, uint32(n))
		c.srv.count(func(s *WireStats) { s.Updates++ })
	}
	return nil
}

// begin runs the handler of a request that is complete. The lock is held.
func (c *wireConn) begin(s *wireStream) {
	ctx, cancel := context.WithCancel(c.ctx)
	s.cancel = cancel
	c.reqs.Go(func() {
		defer cancel()
		c.handle(ctx, s)
	})
}
