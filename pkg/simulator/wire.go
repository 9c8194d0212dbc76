package simulator

import (
	"crypto/tls"
	"net/http"
	"sync"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Wire describes how the APNs server behaves at the level of HTTP/2 frames, on open and on new
// connections. The zero value means the same behaviour as a server of net/http, with the number of
// streams from the configuration.
type Wire struct {
	// Streams is MAX_CONCURRENT_STREAMS. 0: the number from the configuration; below 0: no streams.
	Streams int `json:"streams"`
	// Window is INITIAL_WINDOW_SIZE: how many bytes of a body a caller may send before it must wait
	// for a WINDOW_UPDATE. 0: 65,535; below 0: no bytes.
	Window int `json:"window"`
	// HeaderTable is HEADER_TABLE_SIZE in bytes. 0: 4,096; below 0: no header table.
	HeaderTable int `json:"header_table"`
	// Frame is MAX_FRAME_SIZE in bytes. 0: 16,384, which is the least size that HTTP/2 allows.
	Frame int `json:"frame"`
	// If Silent is true, the server reads everything and sends nothing, like a dead connection.
	Silent bool `json:"silent"`
}

func (w Wire) withDefaults(streams int) Wire {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
		*v = max(0, *v)
	}
	def(&w.Streams, streams)
	def(&w.Window, 65535)
	def(&w.HeaderTable, 4096)
	def(&w.Frame, 16384)
	return w
}

func (w Wire) validate() error {
	if w.Window > 1<<31-1 || w.HeaderTable > 1<<20 || w.Frame != 0 && (w.Frame < 16384 || w.Frame > 1<<24-1) {
		return notify.Invalid("out_of_range", "wire", "window must be at most 2,147,483,647, header_table at most 1,048,576, and frame 0 or from 16,384 to 16,777,215")
	}
	return nil
}

// WireStats counts events on the connections of the APNs server.
type WireStats struct {
	Open     int    `json:"open"`     // open connections
	Opened   uint64 `json:"opened"`   // connections since the start of the simulator
	Over     uint64 `json:"over"`     // streams that were refused because they were above the stream limit
	Refused  uint64 `json:"refused"`  // refused streams, including the streams in Over
	GoAways  uint64 `json:"go_aways"` // GOAWAYs sent
	Updates  uint64 `json:"updates"`  // WINDOW_UPDATEs sent for streams
	Acked    uint64 `json:"acked"`    // SETTINGS frames that callers acknowledged
	Pings    uint64 `json:"pings"`    // PINGs received
	Resets   uint64 `json:"resets"`   // RST_STREAMs received
	Broken   uint64 `json:"broken"`   // connections that ended because the caller violated the protocol
	Rejected uint64 `json:"rejected"` // streams that the server ignored, because they began after a GOAWAY
}

// wireServer serves APNs over HTTP/2. It replaces the server of net/http, which cannot refuse a
// stream, change a limit of an open connection, or send GOAWAY while requests are in progress, and
// which needs three times as much CPU per request.
type wireServer struct {
	sim     *Simulator
	handler http.Handler
	served  sync.WaitGroup // counts open connections

	mu    sync.Mutex
	wire  Wire
	conns map[*wireConn]struct{}
	stats WireStats
}

func newWireServer(s *Simulator, h http.Handler) *wireServer {
	return &wireServer{sim: s, handler: h, wire: Wire{}.withDefaults(s.cfg.APNs.Streams), conns: map[*wireConn]struct{}{}}
}

// server returns an http.Server that accepts connections and makes their TLS handshakes. Then it
// passes each connection to the wireServer. When the http.Server shuts down, it sends GOAWAY on all
// connections.
func (s *wireServer) server() *http.Server {
	srv := &http.Server{TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(_ *http.Server, tc *tls.Conn, _ http.Handler) { s.serveConn(tc) },
	}}
	srv.RegisterOnShutdown(func() {
		for _, c := range s.openConns() {
			c.goAway()
		}
	})
	return srv
}

func (s *wireServer) serveConn(tc *tls.Conn) {
	s.served.Add(1)
	defer s.served.Done()
	c := newWireConn(s, tc)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.stats.Opened++
	s.mu.Unlock()
	c.serve()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

func (s *wireServer) openConns() []*wireConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*wireConn, 0, len(s.conns))
	for c := range s.conns {
		out = append(out, c)
	}
	return out
}

func (s *wireServer) set(w Wire) {
	s.mu.Lock()
	s.wire = w
	s.mu.Unlock()
	for _, c := range s.openConns() {
		c.announce(w)
	}
}

func (s *wireServer) state() (Wire, WireStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Open = len(s.conns)
	return s.wire, st
}

// updateStats calls f with the counters. It holds the lock during the call.
func (s *wireServer) updateStats(f func(*WireStats)) {
	s.mu.Lock()
	f(&s.stats)
	s.mu.Unlock()
}
