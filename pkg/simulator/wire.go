package simulator

import (
	"crypto/tls"
	"net/http"
	"sync"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Wire is what the APNs server says and does at the level of HTTP/2 frames, on
// connections that are open and on those to come. The zero value is what net/http
// would do, with the streams of the configuration.
type Wire struct {
	// Streams is MAX_CONCURRENT_STREAMS. 0: that of the configuration; below 0: none.
	Streams int `json:"streams"`
	// Window is INITIAL_WINDOW_SIZE in bytes, what a caller may send of a body
	// before it is asked for more. 0: 65,535; below 0: none.
	Window int `json:"window"`
	// HeaderTable is HEADER_TABLE_SIZE in bytes. 0: 4,096; below 0: none.
	HeaderTable int `json:"header_table"`
	// Frame is MAX_FRAME_SIZE in bytes. 0: 16,384, the least there may be.
	Frame int `json:"frame"`
	// Silent takes everything and says nothing, as a line that is dead.
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
		return notify.Invalid("out_of_range", "wire", "is out of what HTTP/2 allows")
	}
	return nil
}

// WireStats counts what happened on the APNs server's connections.
type WireStats struct {
	Open     int    `json:"open"`     // connections now
	Opened   uint64 `json:"opened"`   // in all
	Over     uint64 `json:"over"`     // streams above the limit in force, all refused
	Refused  uint64 `json:"refused"`  // streams refused, those included
	GoAways  uint64 `json:"go_aways"` // said
	Updates  uint64 `json:"updates"`  // windows given back to callers
	Acked    uint64 `json:"acked"`    // SETTINGS that callers acknowledged
	Pings    uint64 `json:"pings"`    // that came
	Resets   uint64 `json:"resets"`   // RST_STREAMs that came
	Broken   uint64 `json:"broken"`   // connections whose caller broke the protocol
	Rejected uint64 `json:"rejected"` // requests of streams after a GOAWAY, not looked at
}

// wireServer serves APNs over HTTP/2. net/http's server could not refuse a
// stream, change its mind about a limit, or go away in the middle; and it costs
// three times as much a request.
type wireServer struct {
	sim     *Simulator
	handler http.Handler
	served  sync.WaitGroup // connections

	mu    sync.Mutex
	wire  Wire
	conns map[*wireConn]struct{}
	stats WireStats
}

func newWireServer(s *Simulator, h http.Handler) *wireServer {
	return &wireServer{sim: s, handler: h, wire: Wire{}.withDefaults(s.cfg.APNs.Streams), conns: map[*wireConn]struct{}{}}
}

// server accepts connections and shakes hands; what is said on them is ours. When it is
// to stop, they are told to go away.
func (s *wireServer) server() *http.Server {
	srv := &http.Server{TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(_ *http.Server, tc *tls.Conn, _ http.Handler) { s.serveConn(tc) },
	}}
	srv.RegisterOnShutdown(func() {
		for _, c := range s.all() {
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

func (s *wireServer) all() []*wireConn {
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
	for _, c := range s.all() {
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

// count changes the counters.
func (s *wireServer) count(f func(*WireStats)) {
	s.mu.Lock()
	f(&s.stats)
	s.mu.Unlock()
}
