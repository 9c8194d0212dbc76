package h2

import (
	"bytes"
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is the server's end of a connection, frame by frame, on a pipe and with
// the clock of synctest.
type peer struct {
	t      *testing.T
	nc     net.Conn
	fr     *http2.Framer
	frames chan frame // that came; closed with the connection

	largest int // frame there may be
	out     sync.Mutex
	enc     *hpack.Encoder
	block   bytes.Buffer
}

// frame is one that came.
type frame struct {
	http2.FrameHeader
	payload []byte
}

func (f frame) ended() bool { return f.Flags&http2.FlagDataEndStream != 0 }

// world is a pool and the connections it has made.
type world struct {
	*Pool
	t     *testing.T
	conns chan net.Conn
	stop  context.CancelFunc
}

// pipeTest runs f with a pool of one connection.
func pipeTest(t *testing.T, change func(*Config), f func(t *testing.T, w *world)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, conns: make(chan net.Conn, 100)}
		cfg := Config{
			Judge: func(*Request) Verdict { return Proven },
			Dial: func(context.Context) (net.Conn, error) {
				a, b := net.Pipe()
				w.conns <- b
				return a, nil
			},
		}
		if change != nil {
			change(&cfg)
		}
		w.Pool = New(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		w.stop = cancel
		var wg sync.WaitGroup
		wg.Go(func() { _ = w.Run(ctx) })
		f(t, w)
		cancel()
		wg.Wait()
		for len(w.conns) > 0 {
			(<-w.conns).Close()
		}
		if s := w.Stats(); s.InFlight != 0 || s.Waiting != 0 || s.Open != 0 || len(w.openConns) != 0 {
			t.Errorf("left behind: %+v, %d connections", s, len(w.openConns))
		}
	})
}

// accept takes the next connection and sends the first SETTINGS.
func (w *world) accept(settings ...http2.Setting) *peer {
	w.t.Helper()
	p := &peer{t: w.t, nc: <-w.conns, frames: make(chan frame, 10_000), largest: defaultFrame}
	for _, s := range settings {
		if s.ID == http2.SettingMaxFrameSize {
			p.largest = int(s.Val)
		}
	}
	p.fr = http2.NewFramer(p.nc, p.nc)
	p.fr.AllowIllegalWrites = true
	p.fr.SetMaxReadFrameSize(1<<24 - 1)
	p.enc = hpack.NewEncoder(&p.block)
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(p.nc, preface); err != nil || string(preface) != http2.ClientPreface {
		w.t.Fatalf("preface %q: %v", preface, err)
	}
	go func() {
		defer close(p.frames)
		for {
			h, err := p.fr.ReadFrameHeader()
			if err != nil {
				return
			}
			b := make([]byte, h.Length)
			if _, err := io.ReadFull(p.nc, b); err != nil {
				return
			}
			p.frames <- frame{h, b}
		}
	}()
	p.write(func() error { return p.fr.WriteSettings(settings...) })
	w.t.Cleanup(func() { p.nc.Close() })
	synctest.Wait()
	return p
}

func (p *peer) write(f func() error) {
	p.t.Helper()
	p.out.Lock()
	defer p.out.Unlock()
	if err := f(); err != nil {
		p.t.Logf("write: %v", err)
	}
}

// next returns the next frame of a type, skipping others.
func (p *peer) next(types ...http2.FrameType) frame {
	p.t.Helper()
	for f := range p.frames {
		if len(f.payload) > p.largest {
			p.t.Errorf("a frame of %d bytes", len(f.payload))
		}
		for _, t := range types {
			if f.Type == t {
				return f
			}
		}
	}
	p.t.Fatalf("the connection ended before %v", types)
	return frame{}
}

// request reads one request whole and returns its stream, fragment and body.
func (p *peer) request() (id uint32, block, body []byte) {
	p.t.Helper()
	f := p.next(http2.FrameHeaders)
	id, block = f.StreamID, f.payload
	for ended, complete := f.ended(), f.Flags.Has(http2.FlagHeadersEndHeaders); !ended || !complete; {
		f = p.next(http2.FrameData, http2.FrameContinuation)
		if f.Type == http2.FrameContinuation {
			block = append(block, f.payload...)
			complete = f.Flags.Has(http2.FlagContinuationEndHeaders)
			continue
		}
		body = append(body, f.payload...)
		ended = f.ended()
	}
	return id, block, body
}

func (p *peer) headers(id uint32, end bool, fields ...string) {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = p.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	p.write(func() error {
		return p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.block.Bytes(), EndHeaders: true, EndStream: end})
	})
}

func (p *peer) ok(id uint32) { p.headers(id, true, ":status", "200", "apns-id", strconv.Itoa(int(id))) }

// answerAll answers whatever comes until the connection ends.
func (p *peer) answerAll() {
	go func() {
		for f := range p.frames {
			if (f.Type == http2.FrameData || f.Type == http2.FrameHeaders) && f.ended() {
				p.ok(f.StreamID)
			}
		}
	}()
}

var testFields = NewFields("https", "push.example", Field{Name: "topic", Value: "t"}, Field{Name: "authorization", Value: "bearer secret", Sensitive: true})

func newRequest(body string) *Request {
	return &Request{Fields: testFields, Path: []byte("/x"), OwnFields: AppendField(nil, "id", "1"), Body: []byte(body)}
}

// submit queues n requests in a batch of their own. A body of "#" stands for the
// number of each.
func (w *world) submit(n int, body string) (*Batch, []*Request) {
	b, rs := NewBatch(), make([]*Request, n)
	for i := range rs {
		rs[i] = newRequest(body)
		if body == "#" {
			rs[i].Body = strconv.AppendInt(nil, int64(i), 10)
		}
		rs[i].Tag = i
	}
	w.Submit(b, rs...)
	return b, rs
}

// wait returns when all n requests of a batch have come back, each once.
func (w *world) wait(ctx context.Context, b *Batch, n int) {
	w.t.Helper()
	seen := map[*Request]bool{}
	for len(seen) < n {
		for _, r := range b.Wait(ctx, w.Pool) {
			if seen[r] {
				w.t.Errorf("request %d came back twice", r.Tag)
			}
			seen[r] = true
		}
	}
}

// do sends one request while f plays the server.
func (w *world) do(body string, f func(b *Batch)) *Request {
	w.t.Helper()
	b, rs := w.submit(1, body)
	f(b)
	w.wait(w.t.Context(), b, 1)
	return rs[0]
}

// warm lets a connection prove itself.
func (w *world) warm(p *peer) {
	w.t.Helper()
	if r := w.do("x", func(*Batch) { id, _, _ := p.request(); p.ok(id) }); r.Status != 200 {
		w.t.Fatalf("%+v", r)
	}
}

// gone waits for the end of the connection and returns the last GOAWAY's code.
func (p *peer) gone() (code http2.ErrCode, said bool) {
	for f := range p.frames {
		if f.Type == http2.FrameGoAway {
			said = true
			code = http2.ErrCode(uint32(f.payload[4])<<24 | uint32(f.payload[5])<<16 | uint32(f.payload[6])<<8 | uint32(f.payload[7]))
		}
	}
	return code, said
}
