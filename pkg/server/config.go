package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// NoAdmin is the AdminAddr of a server without a listener for metrics and pprof.
const NoAdmin = "none"

// Config are the server's addresses and limits. The zero value listens on
// loopback with the defaults.
type Config struct {
	Addr      string `default:"127.0.0.1:8080"` // of the API
	AdminAddr string `default:"127.0.0.1:9090"` // of metrics and pprof; NoAdmin: none
	// Listener and AdminListener are used instead of opening Addr and AdminAddr.
	Listener, AdminListener net.Listener

	// TLS serves the API encrypted. nil: plain HTTP, on loopback only unless
	// Plaintext says otherwise. MinVersion below 1.2 is raised to it.
	TLS *tls.Config
	// Plaintext says where HTTP without TLS may listen: "loopback", or "anywhere" where
	// something in front encrypts. It holds for both listeners.
	Plaintext string `default:"loopback" oneof:"loopback anywhere"`

	ReadHeaderTimeout time.Duration `default:"5s" above:"0"`
	ReadTimeout       time.Duration `default:"15s" above:"0"`   // a whole request but large ones
	BulkReadTimeout   time.Duration `default:"1m" above:"0"`    // a batch or a fan-out
	BodyRate          int64         `default:"64KiB" above:"0"` // bytes a second that a batch or a fan-out must come at
	BodyWindow        time.Duration `default:"5s" above:"0"`    // over how long
	WriteTimeout      time.Duration `default:"30s" above:"0"`   // handler and answer
	IdleTimeout       time.Duration `default:"1m" above:"0"`    // of a connection between requests
	MaxHeaderBytes    int           `default:"16KiB" above:"0"`

	MaxSingle int64 `default:"512KiB" above:"0"` // bytes of a body
	MaxBatch  int64 `default:"8MiB" above:"0"`
	MaxFanout int64 `default:"64MiB" above:"0"`

	// MaxConns is how many connections the API has. At it a new one closes an idle one, first
	// of clients that never showed a token.
	MaxConns int `default:"16384" above:"0"`
	// The next four are shared out: a caller may have as much as it leaves free,
	// so one alone has half; over that it is answered 429.
	MaxInFlight int   `default:"2048" above:"0"`   // requests at a time, over it 503
	MaxStreams  int   `default:"256" above:"0"`    // tails and waiting feed requests at a time
	SmallMemory int64 `default:"64MiB" above:"0"`  // bytes of bodies of single requests at a time
	BulkMemory  int64 `default:"512MiB" above:"0"` // the same of batches and fan-outs
	// MemoryWait is how long a batch or fan-out waits for memory before it is refused.
	MemoryWait time.Duration `default:"2s" above:"0"`

	CallerRate  float64 `default:"50000" above:"0"` // requests per second of a caller
	CallerBurst int     `above:"0"`                 // default: one second's worth
	MaxCallers  int     `default:"10000" above:"0"` // callers whose rates are kept

	PageSize    int `default:"50" above:"0"` // items of a page where the request names no limit
	MaxPageSize int `default:"1000" above:"0" max:"1000"`
	CountLimit  int `default:"1000000" above:"0"` // receivers one summary counts by default, ten times that at most

	// CursorKey signs cursors, at least 32 bytes; servers behind one address
	// share it. Default: a random one, so that cursors end with the process.
	CursorKey []byte

	// MaxWait is how long a user's history or a timeline may take to be read; then the answer
	// is 503. It is below WriteTimeout.
	MaxWait time.Duration `default:"10s" above:"0"`

	FeedPoll     time.Duration `default:"250ms" above:"0"` // how often a waiting feed request looks
	Heartbeat    time.Duration `default:"15s" above:"0"`   // of a silent tail
	DrainDelay   time.Duration `min:"0"`                   // between not ready and closing; 0: at once
	DrainTimeout time.Duration `default:"20s" above:"0"`   // for requests under way at the end
}

func (c Config) withDefaults() Config {
	c = setting.Fill(c)
	if c.CallerBurst == 0 {
		c.CallerBurst = int(c.CallerRate) + 1
	}
	return c
}

// validate returns an error for a value that no configuration leads to.
func (c Config) validate() error {
	switch {
	case max(c.MaxFanout, c.MaxBatch, c.MaxSingle) > maxBuffer || c.SmallMemory < c.MaxSingle || c.BulkMemory < 2*c.MaxFanout:
		return errors.New("server: bodies are above what a buffer, small_memory or half of bulk_memory holds")
	case c.PageSize > c.MaxPageSize || c.CursorKey != nil && len(c.CursorKey) < 32:
		return errors.New("server: page_size is above max_page_size, or cursor_key has below 32 bytes")
	}
	return setting.Err("server", &c)
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
