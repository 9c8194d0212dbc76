package h2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// FuzzResponses lets a server send anything. Nothing panics, hangs or stays behind, and every
// request comes back once. The first byte chooses whether the rest is raw bytes, or frames whose
// headers are corrected.
func FuzzResponses(f *testing.F) {
	var good bytes.Buffer
	fr := http2.NewFramer(&good, nil)
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x88}, EndHeaders: true, EndStream: true})
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x8d, 0x40, 1, 'a', 1, 'b'}, EndHeaders: true})
	_ = fr.WriteData(3, true, []byte(`{"reason":"x"}`))
	_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
	_ = fr.WritePing(false, [8]byte{})
	_ = fr.WriteWindowUpdate(5, 7)
	_ = fr.WriteRSTStream(5, http2.ErrCodeRefusedStream)
	_ = fr.WriteGoAway(7, http2.ErrCodeNo, []byte("bye"))
	f.Add(append([]byte{0}, good.Bytes()...))
	f.Add([]byte{1, 1, 5, 1, 1, 0x88, 4, 0, 0, 6, 0, 4, 0, 0, 0, 1, 0, 1, 3, 2, 'h', 'i', 7, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0})
	f.Add([]byte{1, 1, 0, 1, 1, 0x88, 9, 4, 1, 1, 0x88})
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || len(data) > 1<<16 {
			return
		}
		wire := data[1:]
		if data[0]%2 == 1 {
			wire = framed(wire)
		}
		conns := make(chan net.Conn, 1)
		var once sync.Once
		p := New(Config{
			Timeout: time.Minute, BackoffMin: time.Hour, BackoffMax: time.Hour, WriteTimeout: 10 * time.Second,
			Judge: func(*Request) Verdict { return Proven },
			Dial: func(context.Context) (nc net.Conn, err error) {
				err = errors.New("once only")
				once.Do(func() {
					var far net.Conn
					nc, far = net.Pipe()
					conns <- far
					err = nil
				})
				return nc, err
			},
		})
		b := NewBatch()
		rs := make([]*Request, 5)
		for i := range rs {
			rs[i] = newRequest("hello")
		}
		p.Submit(b, rs...)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = p.Run(ctx) })
		far := <-conns
		wg.Go(func() { _, _ = io.Copy(io.Discard, far) })
		_ = http2.NewFramer(far, nil).WriteSettings()
		_, _ = far.Write(wire)
		_ = far.Close()
		seen := 0
		late := time.AfterFunc(time.Minute, func() { panic("a request does not come back") })
		for seen < len(rs) {
			select { // one that may be sent again waits for another connection
			case <-b.wake:
				seen += len(b.Take())
			case <-time.After(time.Millisecond):
				if p.Stats().InFlight == 0 {
					b.Cancel(p)
				}
			}
		}
		late.Stop()
		cancel()
		wg.Wait()
		if s := p.Stats(); s.InFlight != 0 || s.Waiting != 0 || len(b.Take()) != 0 || len(p.openConns) != 0 {
			t.Fatalf("left behind: %+v", s)
		}
	})
}

// framed makes frames of type, flags, stream and length as the bytes say.
func framed(b []byte) (wire []byte) {
	for len(b) >= 4 {
		n := min(int(b[3]), len(b)-4)
		wire = appendFrame(wire, n, http2.FrameType(b[0]%11), http2.Flags(b[1]), uint32(b[2]%16))
		wire = append(wire, b[4:4+n]...)
		b = b[4+n:]
	}
	return wire
}

// FuzzFields: whatever sizes of the table a server asks for, a decoder that
// obeys the same sizes reads every block.
func FuzzFields(f *testing.F) {
	f.Add([]byte{0, 1, 2, 255, 3, 0, 0, 9, 20, 30})
	f.Fuzz(func(t *testing.T, ops []byte) {
		checkFields(t, ops)
	})
}
