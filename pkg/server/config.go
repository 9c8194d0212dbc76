package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/setting"
	"github.com/notifyd/notifyd/pkg/trace"
)

// Config holds the server's addresses and limits. The tagged fields are the section api of the
// configuration file; the program sets the others.
type Config struct {
	Listen    string  `koanf:"listen" default:"127.0.0.1:7420" is:"address" doc:"address of the API"`
	Plaintext string  `koanf:"plaintext" default:"loopback" oneof:"loopback anywhere" doc:"where HTTP without TLS may listen: loopback, or anywhere, if a proxy in front encrypts"`
	Admin     string  `koanf:"admin" default:"127.0.0.1:7421" is:"address" empty:"yes" doc:"address of /metrics and pprof; empty: not served"`
	PublicURL string  `koanf:"public_url" is:"url" empty:"yes" doc:"URL at which providers reach the API with receipts; empty: http://<listen>"`
	Rate      float64 `koanf:"rate" default:"50000" above:"0" doc:"requests per second of a caller without a rate of its own"`
	Burst     int     `koanf:"burst" default:"1000" min:"1" doc:"requests that such a caller may make at once"`
	BodyMiB   int     `koanf:"body_mib" default:"512" min:"128" doc:"MiB of batches and fan-outs in memory at once; one caller gets half of it at most"` // the minimum holds a fan-out of 64 MiB of each of two callers

	// Listener serves the API, AdminListener the admin routes; a nil AdminListener means none.
	Listener, AdminListener net.Listener

	ReadHeaderTimeout time.Duration `default:"5s" above:"0"`
	ReadTimeout       time.Duration `default:"15s" above:"0"`   // a whole request, except batches and fan-outs
	BulkReadTimeout   time.Duration `default:"1m" above:"0"`    // a batch or a fan-out
	BodyRate          int64         `default:"64KiB" above:"0"` // bytes per second at which a batch or a fan-out must arrive
	BodyWindow        time.Duration `default:"5s" above:"0"`    // period over which BodyRate is measured
	WriteTimeout      time.Duration `default:"30s" above:"0"`   // time for the handler and the answer
	IdleTimeout       time.Duration `default:"1m" above:"0"`    // of a connection between requests
	MaxHeaderBytes    int           `default:"16KiB" above:"0"`

	MaxSingle int64 `default:"512KiB" above:"0"` // bytes of a body
	MaxBatch  int64 `default:"8MiB" above:"0"`
	MaxFanout int64 `default:"64MiB" above:"0"`

	// MaxConns is how many connections the API has at most. At the limit a new connection closes
	// an idle one, first those of clients that never showed a token.
	MaxConns int `default:"16384" above:"0"`
	// The next four are shared between callers: a caller may use as much as it leaves free,
	// so a caller alone may use half. Over that it gets 429.
	MaxInFlight int   `default:"2048" above:"0"`  // concurrent requests; over it 503
	MaxStreams  int   `default:"256" above:"0"`   // concurrent tails and waiting feed requests
	SmallMemory int64 `default:"64MiB" above:"0"` // bytes of bodies of single requests at once
	BulkMemory  int64 `min:"0"`                   // the same for batches and fan-outs; default: BodyMiB
	// MemoryWait is how long a batch or fan-out waits for memory before it is refused.
	MemoryWait time.Duration `default:"2s" above:"0"`

	MaxCallers int `default:"10000" above:"0"` // callers whose rates are kept in memory

	PageSize    int `default:"50" above:"0"` // items of a page if the request names no limit
	MaxPageSize int `default:"1000" above:"0" max:"1000"`
	CountLimit  int `default:"1000000" above:"0"` // receivers that one summary counts by default; a request may ask for ten times that

	// CursorKey signs cursors and has at least 32 bytes. Servers behind one address share it.
	// Default: a random key, so that cursors become invalid when the process ends.
	CursorKey []byte

	// MaxWait is how long reading a user's history or a timeline may take; then the answer is
	// 503. It is below WriteTimeout.
	MaxWait time.Duration `default:"10s" above:"0"`

	FeedPoll     time.Duration `default:"250ms" above:"0"` // poll interval of a waiting feed request
	Heartbeat    time.Duration `default:"15s" above:"0"`   // interval of heartbeats in a silent tail
	DrainDelay   time.Duration `min:"0"`                   // time between not ready and closing the listeners; 0: none
	DrainTimeout time.Duration `default:"20s" above:"0"`   // time for requests under way at the end
}

func (c Config) withDefaults() Config {
	c = setting.Fill(c)
	c.BulkMemory = cmp.Or(c.BulkMemory, int64(c.BodyMiB)<<20)
	return c
}

// validate returns an error for values that no configuration file can lead to.
func (c Config) validate() error {
	switch {
	case c.Listener == nil:
		return errors.New("server: a listener is required")
	case max(c.MaxFanout, c.MaxBatch, c.MaxSingle) > maxBuffer || c.SmallMemory < c.MaxSingle || c.BulkMemory < 2*c.MaxFanout:
		return errors.New("server: bodies are above what a buffer, small_memory or half of bulk_memory holds")
	case c.PageSize > c.MaxPageSize || c.CursorKey != nil && len(c.CursorKey) < 32:
		return errors.New("server: page_size is above max_page_size, or cursor_key has below 32 bytes")
	}
	return setting.Err("api", &c)
}

// requireTLSOrLoopback refuses to serve plain HTTP beyond this machine unless the configuration
// allows it.
func (c Config) mayListen(key string, ln net.Listener) error {
	if ln == nil {
		return nil // there is no admin listener
	}
	tcp, ok := ln.Addr().(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() || c.Plaintext == "anywhere" {
		return nil
	}
	return notify.Invalid("bad_config", "api."+key,
		fmt.Sprintf("%s is reachable from other machines without TLS; set api.plaintext: anywhere if a proxy in front encrypts", ln.Addr()))
}

// Intake stores notifications. It keeps no reference to body after it returns, because the server
// reuses the buffer.
type Intake interface {
	Single(ctx context.Context, m request.Meta, body []byte) (request.Answer, error)
	Batch(ctx context.Context, m request.Meta, body []byte) (request.Answer, error)
	Fanout(ctx context.Context, m request.Meta, body []byte) (request.Answer, error)
}

// Users stores users' profiles.
type Users interface {
	// Get returns the profile of a user, or notify.KindNotFound.
	Get(ctx context.Context, user string) (engine.Profile, error)
	// Put checks and stores a profile and returns it as stored. An opt-out in it then binds every
	// call that starts a second later. p.Version other than 0 must be the stored one, else the
	// result is notify.KindConflict. Put keeps the stored suppressions.
	Put(ctx context.Context, p engine.Profile) (engine.Profile, error)
}

// Tail publishes the outcomes that a filter selects as they happen. The channel is closed when
// ctx ends. Tail never waits for a slow reader; such a reader loses events, and missed returns
// how many so far.
type Tail interface {
	Subscribe(ctx context.Context, f api.TailFilter) (events <-chan api.Event, missed func() int64)
}

// Receipt accepts a provider's delivery receipts.
type Receipt struct {
	// Signature is the header that carries the provider's signature. A request
	// without it is refused (401 bad_signature) before its body is read.
	Signature string
	// Take verifies the signature over the request and its body, which can be read once more from
	// r, and stores the receipts. It must not keep the body.
	Take func(r *http.Request, body []byte) error
}

// Report returns the answer to an operator's question, in a form that marshals to JSON.
type Report func(ctx context.Context) (any, error)

// Lister is a history that can also list without a user.
type Lister interface {
	// List calls fn with receivers of the chunks that q selects: the newest request
	// first, within a request by the first index of the chunk, within a chunk by
	// index. It stops before the receiver for which fn returns false, and when it has
	// read as much as one call may, which can be before fn was called at all. The
	// cursor continues there; nil means there is no more. Found is reused, and its
	// slices are fn's until it returns.
	List(ctx context.Context, q engine.ListQuery, fn func(*engine.Found) (bool, error)) (engine.HistoryCursor, error)
}

// Cancels stores cancellations: users.CancelStore.
type Cancels interface {
	Put(ctx context.Context, c engine.Cancel) (version uint64, err error)
	Get(ctx context.Context, scope string) (c engine.Cancel, ok bool, err error)
}

// Campaigns reads campaigns: store.Campaigns.
type Campaigns interface {
	Get(ctx context.Context, id string) (c engine.Campaign, ok bool, err error)
	List(ctx context.Context, caller string, after engine.Campaign, max int) ([]engine.Campaign, error)
}

// Deps are the parts that the server uses. Auth, Intake, Users, History, Status, DeadLetters,
// Cancels, Campaigns, CampaignHolds and Tail are required.
type Deps struct {
	Auth          *Verifier
	Intake        Intake
	Users         Users
	History       history.Reader
	List          Lister // nil: GET /v1/notifications needs a user
	OmitsFanouts  bool   // the history of a user lacks fan-outs
	Status        engine.Status
	DeadLetters   engine.DeadLetters
	Cancels       Cancels
	Campaigns     Campaigns
	CampaignHolds CampaignHolds
	Schedules     Schedules            // nil: nothing was ever scheduled
	Triggers      Triggers             // nil: the routes of triggers are 503
	Circuits      Circuits             // nil: the routes of circuits are 503
	TestProvider  TestProvider         // nil: tests of providers are 503
	Jobs          Jobs                 // nil: the routes of jobs and plans are 503
	Audit         *deadletter.AuditLog // nil: operators' changes are not recorded
	Lanes         Lanes                // nil: the routes of lanes are 503
	// Suppressions; nil: their routes are 503.
	Suppressions Suppressions
	// Conservation checks what was accepted since then (zero: all) against outcomes; nil: GET
	// /v1/ops/audit:run is 503.
	Conservation func(ctx context.Context, since time.Time) (api.Conservation, error)
	CheckURL     URLCheck // nil: GET /v1/ops/url-check is 503
	// AdmitURL returns an error, which names the field, for a callback URL that the egress policy
	// never allows; nil: all are accepted.
	AdmitURL func(field, raw string) error
	Callers  engine.Callers // nil: every caller has the default rate
	Grants   LoadGrants     // nil: no load run has a grant, and the routes of grants are 503
	// LoadLocal accepts load runs without a grant over loopback. It is for an embedded notifyd
	// that calls no real providers: a tunnel from another machine may end on loopback, too.
	LoadLocal bool
	// SharedTokens enforce callers' rates over all processes; nil: there is one process.
	SharedTokens SharedTokens
	Receipts     map[string]Receipt // by provider; nil: none
	Tail         Tail               // required
	Doctor       Report             // nil: GET /v1/ops/doctor is 503
	Lag          Report             // nil: GET /v1/ops/lag is 503
	Debug        Report             // nil: GET /v1/ops/debug is 503
	// Backup takes a snapshot for a backup; nil: GET /v1/ops/backup is 503.
	Backup   func(context.Context) (Snapshot, error)
	Rates    Report // nil: GET /v1/ops/rates is 503
	Accounts Report // nil: GET /v1/ops/accounts is 503
	// Page makes the operator page, which is served under /ui/. The page calls api with the token
	// of the person who uses it; nil: there is no page.
	Page     func(api http.Handler) http.Handler
	Ready    func(context.Context) error // nil: ready unless draining
	Warnings func() []string             // short codes of problems that do not stop the server from accepting requests; nil: none
	Version  string                      // of the program, for /healthz; empty: not shown
	// Standing returns why no call of a lane can be made now; ok is false if calls can be made.
	// nil: unknown.
	Standing func(notify.Lane) (why Standing, ok bool)
	// Admission admits batches and fan-outs under overload; nil: all are admitted.
	Admission *limit.Admission
	// MailHold is the longest time a worker holds a mail to batch it with others of the same
	// content; 0: it does not hold mails.
	MailHold time.Duration
	Metrics  prometheus.Gatherer // nil: no /metrics
	Hooks    Hooks
	Tracer   *trace.Tracer // nil: no spans; a traceparent is still passed on

	// PlainCallbacks allows http in callers' base URLs, as the egress policy does.
	PlainCallbacks bool
	Log            *slog.Logger     // nil: discarded
	Now            func() time.Time // nil: time.Now
}

// Hooks are callbacks for metrics; each may be nil. They run on the request's
// goroutine and must not block.
type Hooks struct {
	// Request: a request was answered. route is its pattern, or "other" without a route.
	// in and out are bytes of bodies, in as read from the connection.
	Request func(route, method string, status int, took time.Duration, in, out int64)
	// InFlight: the number of requests under way changed by delta.
	InFlight func(delta int)
	// Refused: a request was refused before its handler. reason is "in_flight", "overload",
	// "memory", "receipts", "pages", "slow" (the body of a request without a token was cut
	// off because it took longest), "connections" (a connection was closed to make room for
	// another), "streams", "rate", "load" (a load run without a valid grant) or "disabled";
	// or "caller_in_flight", "caller_memory" or "caller_streams" if only this caller has used
	// its share.
	Refused func(reason string)
	// Unguarded: a request was accepted without checking its idempotency key, because its
	// caller allowed at-least-once. name is the scope of the key, "POST /v1/triggers".
	Unguarded func(name string)
}

func (h *Hooks) refused(reason string) {
	if h.Refused != nil {
		h.Refused(reason)
	}
}
