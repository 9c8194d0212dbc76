package server

import (
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// NoAdmin is the AdminAddr of a server without a listener for metrics and pprof.
const NoAdmin = "none"

// Config are the server's addresses and limits. The zero value listens on
// loopback with the defaults.
type Config struct {
	Addr      string // of the API; default "127.0.0.1:8080"
	AdminAddr string // of metrics and pprof; NoAdmin: none; default "127.0.0.1:9090"
	// Listener and AdminListener are used instead of opening Addr and AdminAddr.
	Listener, AdminListener net.Listener

	// TLS serves the API encrypted. nil: plain HTTP, on loopback only unless
	// Plaintext says otherwise. MinVersion below 1.2 is raised to it.
	TLS *tls.Config
	// Plaintext says where HTTP without TLS may listen: "loopback", or
	// "anywhere" where something in front encrypts. It holds for both
	// listeners. Default "loopback".
	Plaintext string

	ReadHeaderTimeout time.Duration // default 5 s
	ReadTimeout       time.Duration // a whole request but large ones; default 15 s
	BulkReadTimeout   time.Duration // a batch or a fan-out; default 60 s
	BodyRate          int64         // bytes a second that a batch or a fan-out must come at; default 64 KiB
	BodyWindow        time.Duration // over how long; default 5 s
	WriteTimeout      time.Duration // handler and answer; default 30 s
	IdleTimeout       time.Duration // of a connection between requests; default 60 s
	MaxHeaderBytes    int           // default 16 KiB

	MaxSingle int64 // bytes of a body; default 512 KiB
	MaxBatch  int64 // default 8 MiB
	MaxFanout int64 // default 64 MiB

	// MaxConns is how many connections the API has; default 16,384. At it a new one
	// closes an idle one, first of clients that never showed a token.
	MaxConns int
	// The next four are shared out: a caller may have as much as it leaves free,
	// so one alone has half; over that it is answered 429.
	MaxInFlight int   // requests at a time, over it 503; default 2,048
	MaxStreams  int   // tails and waiting feed requests at a time; default 256
	SmallMemory int64 // bytes of bodies of single requests at a time; default 64 MiB
	BulkMemory  int64 // the same of batches and fan-outs; default 512 MiB
	// MemoryWait is how long a batch or fan-out waits for memory before it is
	// refused. Default 2 s.
	MemoryWait time.Duration

	CallerRate  float64 // requests per second of a caller; default 50,000
	CallerBurst int     // default: one second's worth
	MaxCallers  int     // callers whose rates are kept; default 10,000

	PageSize    int // items of a page where the request names no limit; default 50
	MaxPageSize int // default 1,000
	CountLimit  int // receivers one summary counts by default; default 1,000,000, ten times that at most

	// CursorKey signs cursors, at least 32 bytes; servers behind one address
	// share it. Default: a random one, so that cursors end with the process.
	CursorKey []byte

	// MaxWait is how long a user's history or a timeline may take to be read;
	// then the answer is 503. Default 10 s, below WriteTimeout.
	MaxWait time.Duration

	FeedPoll     time.Duration // how often a waiting feed request looks; default 250 ms
	Heartbeat    time.Duration // of a silent tail; default 15 s
	DrainDelay   time.Duration // between not ready and closing; default 0: at once
	DrainTimeout time.Duration // for requests under way at the end; default 20 s
}

func (c Config) withDefaults() Config {
	c.Addr = or(c.Addr, "127.0.0.1:8080")
	c.AdminAddr = or(c.AdminAddr, "127.0.0.1:9090")
	c.Plaintext = or(c.Plaintext, "loopback")
	c.ReadHeaderTimeout = or(c.ReadHeaderTimeout, 5*time.Second)
	c.ReadTimeout = or(c.ReadTimeout, 15*time.Second)
	c.BulkReadTimeout = or(c.BulkReadTimeout, time.Minute)
	c.BodyRate = or(c.BodyRate, 64<<10)
	c.BodyWindow = or(c.BodyWindow, 5*time.Second)
	c.WriteTimeout = or(c.WriteTimeout, 30*time.Second)
	c.IdleTimeout = or(c.IdleTimeout, time.Minute)
	c.MaxHeaderBytes = or(c.MaxHeaderBytes, 16<<10)
	c.MaxSingle = or(c.MaxSingle, 512<<10)
	c.MaxBatch = or(c.MaxBatch, 8<<20)
	c.MaxFanout = or(c.MaxFanout, 64<<20)
	c.MaxConns = or(c.MaxConns, 16_384)
	c.MaxInFlight = or(c.MaxInFlight, 2048)
	c.MaxStreams = or(c.MaxStreams, 256)
	c.SmallMemory = or(c.SmallMemory, 64<<20)
	c.BulkMemory = or(c.BulkMemory, 512<<20)
	c.MemoryWait = or(c.MemoryWait, 2*time.Second)
	c.CallerRate = or(c.CallerRate, 50_000)
	c.CallerBurst = or(c.CallerBurst, int(c.CallerRate)+1)
	c.MaxCallers = or(c.MaxCallers, 10_000)
	c.PageSize = or(c.PageSize, 50)
	c.MaxPageSize = or(c.MaxPageSize, 1000)
	c.CountLimit = or(c.CountLimit, 1_000_000)
	c.MaxWait = or(c.MaxWait, 10*time.Second)
	c.FeedPoll = or(c.FeedPoll, 250*time.Millisecond)
	c.Heartbeat = or(c.Heartbeat, 15*time.Second)
	c.DrainTimeout = or(c.DrainTimeout, 20*time.Second)
	return c
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func (c Config) validate() error {
	bad := func(field, msg string) error { return notify.Invalid("bad_config", "server."+field, msg) }
	for field, v := range map[string]int64{
		"max_single": c.MaxSingle, "max_batch": c.MaxBatch, "max_fanout": c.MaxFanout,
		"max_conns": int64(c.MaxConns), "max_in_flight": int64(c.MaxInFlight), "max_streams": int64(c.MaxStreams),
		"caller_burst": int64(c.CallerBurst), "max_callers": int64(c.MaxCallers), "page_size": int64(c.PageSize),
		"count_limit": int64(c.CountLimit), "max_header_bytes": int64(c.MaxHeaderBytes),
		"read_header_timeout": int64(c.ReadHeaderTimeout), "read_timeout": int64(c.ReadTimeout),
		"bulk_read_timeout": int64(c.BulkReadTimeout), "body_rate": c.BodyRate, "body_window": int64(c.BodyWindow), "write_timeout": int64(c.WriteTimeout),
		"idle_timeout": int64(c.IdleTimeout), "memory_wait": int64(c.MemoryWait), "feed_poll": int64(c.FeedPoll),
		"heartbeat": int64(c.Heartbeat), "max_wait": int64(c.MaxWait), "drain_timeout": int64(c.DrainTimeout), "drain_delay": int64(c.DrainDelay) + 1,
	} {
		if v <= 0 {
			return bad(field, "must be above 0")
		}
	}
	switch {
	case c.MaxFanout > maxBuffer || c.MaxBatch > maxBuffer || c.MaxSingle > maxBuffer:
		return bad("max_fanout", fmt.Sprintf("no body may be over %d bytes", maxBuffer))
	case c.SmallMemory < c.MaxSingle:
		return bad("small_memory", "must hold one body of max_single")
	case c.BulkMemory < 2*c.MaxFanout:
		return bad("bulk_memory", "must hold bodies of max_fanout of two callers: twice that")
	case c.PageSize > c.MaxPageSize || c.MaxPageSize > 1000:
		return bad("max_page_size", "must be from page_size to 1,000")
	case c.CallerRate < 0:
		return bad("caller_rate", "must be above 0")
	case c.CursorKey != nil && len(c.CursorKey) < 32:
		return bad("cursor_key", "must have at least 32 bytes")
	case c.Plaintext != "loopback" && c.Plaintext != "anywhere":
		return bad("plaintext", `must be "loopback" or "anywhere"`)
	}
	return nil
}

// mayListen refuses to serve plain HTTP beyond this machine unasked.
func (c Config) mayListen(field string, ln net.Listener, tlsOn *tls.Config) error {
	tcp, ok := ln.Addr().(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() || tlsOn != nil || c.Plaintext == "anywhere" {
		return nil
	}
	return notify.Invalid("bad_config", "server."+field,
		fmt.Sprintf("%s is reachable from other machines without TLS; set tls, or plaintext: anywhere where something in front encrypts", ln.Addr()))
}
