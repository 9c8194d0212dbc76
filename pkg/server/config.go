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

// Config contains the server's addresses and limits. The fields with a koanf tag are the section
// "api" of the configuration file. The program sets the other fields.
type Config struct {
	Listen    string  `koanf:"listen" default:"127.0.0.1:7420" is:"address" doc:"address of the API"`
	Plaintext string  `koanf:"plaintext" default:"loopback" oneof:"loopback anywhere" doc:"where the API and the admin address may accept HTTP without TLS: only on loopback, or anywhere; set anywhere only if a proxy in front encrypts"`
	Admin     string  `koanf:"admin" default:"127.0.0.1:7421" is:"address" empty:"yes" doc:"address of /metrics and pprof; empty: not served"`
	PublicURL string  `koanf:"public_url" is:"url" empty:"yes" doc:"URL at which providers reach the API with receipts; empty: http://<listen>"`
	Rate      float64 `koanf:"rate" default:"50000" above:"0" doc:"requests per second of each caller that has no rate of its own, over all processes; above it the caller gets 429"`
	Burst     int     `koanf:"burst" default:"1000" min:"1" doc:"requests that a caller without a burst of its own may make at the same moment; above it api.rate applies"`
	BodyMiB   int     `koanf:"body_mib" default:"512" min:"128" doc:"MiB of memory for the bodies of batches and fan-outs at the same time; one caller may use at most half of it. A request that finds no memory for 2 s is refused"` // with the minimum, two callers can each send a fan-out of 64 MiB at the same time

	// Listener serves the API, and AdminListener serves the admin routes. If AdminListener is nil,
	// the admin routes are not served.
	Listener, AdminListener net.Listener

	ReadHeaderTimeout time.Duration `default:"5s" above:"0"`
	ReadTimeout       time.Duration `default:"15s" above:"0"`   // time limit of a whole request, except batches and fan-outs
	BulkReadTimeout   time.Duration `default:"1m" above:"0"`    // time limit of a batch or a fan-out
	BodyRate          int64         `default:"64KiB" above:"0"` // lowest speed of the bodies of batches, fan-outs and requests without a token, bytes per second
	BodyWindow        time.Duration `default:"5s" above:"0"`    // period over which BodyRate is measured
	WriteTimeout      time.Duration `default:"30s" above:"0"`   // time for the handler and the answer
	IdleTimeout       time.Duration `default:"1m" above:"0"`    // how long a connection may be idle between two requests
	MaxHeaderBytes    int           `default:"16KiB" above:"0"`

	MaxSingle int64 `default:"512KiB" above:"0"` // largest body of a single request, in bytes; the next two: of a batch and of a fan-out
	MaxBatch  int64 `default:"8MiB" above:"0"`
	MaxFanout int64 `default:"64MiB" above:"0"`

	// MaxConns is the largest number of connections of the API. At this number, the server closes
	// one of them for each new connection, but never one on which a caller's request is in progress.
	// It first closes idle connections of clients that never showed a token.
	MaxConns int `default:"16384" above:"0"`
	// Callers share each of the next four limits. A caller may not use more of a limit than it
	// leaves free for others; for more it gets 429. So a caller that is alone may use half of a
	// limit.
	MaxInFlight int   `default:"2048" above:"0"`  // concurrent requests; above this number the answer is 503
	MaxStreams  int   `default:"256" above:"0"`   // concurrent tails, requests of the failed feed, backups and audit runs
	SmallMemory int64 `default:"64MiB" above:"0"` // bytes of the bodies of single requests at the same time
	BulkMemory  int64 `min:"0"`                   // the same for batches and fan-outs; default: BodyMiB
	// MemoryWait is how long a batch or fan-out waits for memory before it is refused.
	MemoryWait time.Duration `default:"2s" above:"0"`

	MaxCallers int `default:"10000" above:"0"` // number of callers whose rates are kept in memory

	PageSize    int `default:"50" above:"0"` // items of a page if the request gives no limit
	MaxPageSize int `default:"1000" above:"0" max:"1000"`
	// CountLimit is how many receivers one summary counts by default. A request may ask for up to
	// ten times as many.
	CountLimit int `default:"1000000" above:"0"`

	// CursorKey signs cursors. It must have at least 32 bytes. Servers behind one address must use
	// the same key. Default: a random key, so cursors become invalid when the process ends.
	CursorKey []byte

	// MaxWait is the time limit for reading a user's history or a timeline. After that the answer
	// is 503. It must be below WriteTimeout.
	MaxWait time.Duration `default:"10s" above:"0"`

	FeedPoll     time.Duration `default:"250ms" above:"0"` // poll interval of a waiting feed request
	Heartbeat    time.Duration `default:"15s" above:"0"`   // interval of heartbeats in a silent tail
	DrainDelay   time.Duration `min:"0"`                   // time between "not ready" and closing the listeners; 0: no delay
	DrainTimeout time.Duration `default:"20s" above:"0"`   // how long requests in progress may still take after the listeners have closed
}

func (c Config) withDefaults() Config {
	c = setting.Fill(c)
	c.BulkMemory = cmp.Or(c.BulkMemory, int64(c.BodyMiB)<<20)
	return c
}

// validate returns an error if the listener is missing, if limits do not fit together, or if a field
// breaks the rule in its tag.
func (c Config) validate() error {
	switch {
	case c.Listener == nil:
		return errors.New("server: a listener is required")
	case max(c.MaxFanout, c.MaxBatch, c.MaxSingle) > maxBuffer || c.SmallMemory < c.MaxSingle || c.BulkMemory < 2*c.MaxFanout:
		return errors.New("server: MaxSingle, MaxBatch and MaxFanout must be at most 64 MiB, MaxSingle at most SmallMemory, and MaxFanout at most half of BulkMemory")
	case c.PageSize > c.MaxPageSize || c.CursorKey != nil && len(c.CursorKey) < 32:
		return errors.New("server: PageSize must be at most MaxPageSize, and CursorKey must have at least 32 bytes")
	}
	return setting.Err("api", &c)
}

// mayListen returns an error if other machines could reach this server by plain HTTP and the
// configuration does not allow that.
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

// Intake stores notifications. Its methods keep no reference to body after they return, because the
// server reuses the buffer.
type Intake interface {
	Single(ctx context.Context, m request.Meta, body []byte) (request.Answer, error)
	Batch(ctx context.Context, m request.Meta, body []byte) (request.Answer, error)
	Fanout(ctx context.Context, m request.Meta, body []byte) (request.Answer, error)
}

// Users stores users' profiles.
type Users interface {
	// Get returns the profile of a user. It returns notify.KindNotFound if the user has no profile.
	Get(ctx context.Context, user string) (engine.Profile, error)
	// Put checks and stores a profile, and returns the stored profile. An opt-out in the profile
	// stops all calls that start at least a second later. If p.Version is not 0, it must equal the
	// stored version; otherwise Put returns notify.KindConflict. Put keeps the stored suppressions.
	Put(ctx context.Context, p engine.Profile) (engine.Profile, error)
}

// Tail publishes the outcomes that a filter selects, when they happen. The channel is closed when
// ctx ends. Tail never waits for a slow reader: a slow reader loses events. missed returns how many
// events were lost so far.
type Tail interface {
	Subscribe(ctx context.Context, f api.TailFilter) (events <-chan api.Event, missed func() int64)
}

// Receipt accepts a provider's delivery receipts.
type Receipt struct {
	// Signature is the name of the header with the provider's signature. A request without this
	// header is refused with 401 bad_signature before its body is read.
	Signature string
	// Take verifies the signature of the request and its body, and stores the receipts. The body
	// can also be read once from r. Take must not keep a reference to body.
	Take func(r *http.Request, body []byte) error
}

// Report returns an answer for an operator, as a value that can be marshalled to JSON.
type Report func(ctx context.Context) (any, error)

// Lister is a history that can also list notifications without a user.
type Lister interface {
	// List calls fn with the receivers of the chunks that q selects. Their order is: newest request
	// first, then the chunk's first index, then the receiver's index.
	//
	// List stops if fn returns false, or when it has read as much as one call may read, even if it
	// has not called fn. The returned cursor continues at this place. If fn returned false for a
	// receiver, the next call begins with this receiver. A nil cursor means that nothing follows.
	// The Found is used again after fn returns, so fn must not keep its slices.
	List(ctx context.Context, q engine.ListQuery, fn func(*engine.Found) (bool, error)) (engine.HistoryCursor, error)
}

// Cancels stores cancellations. users.CancelStore implements it.
type Cancels interface {
	Put(ctx context.Context, c engine.Cancel) (version uint64, err error)
	Get(ctx context.Context, scope string) (c engine.Cancel, ok bool, err error)
}

// Campaigns reads campaigns. store.Campaigns implements it.
type Campaigns interface {
	Get(ctx context.Context, id string) (c engine.Campaign, ok bool, err error)
	List(ctx context.Context, caller string, after engine.Campaign, max int) ([]engine.Campaign, error)
}

// Deps are the components that the server uses. Auth, Intake, Users, History, Status, DeadLetters,
// Cancels, Campaigns, CampaignHolds and Tail are required.
type Deps struct {
	Auth          *Verifier
	Intake        Intake
	Users         Users
	History       history.Reader
	List          Lister // nil: GET /v1/notifications requires a user
	OmitsFanouts  bool   // the history of a user does not contain fan-outs
	Status        engine.Status
	DeadLetters   engine.DeadLetters
	Cancels       Cancels
	Campaigns     Campaigns
	CampaignHolds CampaignHolds
	Schedules     Schedules            // nil: nothing was ever scheduled
	Triggers      Triggers             // nil: the routes of triggers answer 503
	Circuits      Circuits             // nil: the routes of circuits answer 503
	TestProvider  TestProvider         // nil: tests of providers answer 503
	Jobs          Jobs                 // nil: the routes of jobs and plans answer 503
	Audit         *deadletter.AuditLog // nil: operators' changes are not recorded
	Lanes         Lanes                // nil: the routes of lanes answer 503
	// Suppressions stores the suppressed addresses. nil: its routes answer 503.
	Suppressions Suppressions
	// Conservation compares everything that was accepted since a time with its outcomes. A zero
	// time means everything. nil: GET /v1/ops/audit:run answers 503.
	Conservation func(ctx context.Context, since time.Time) (api.Conservation, error)
	CheckURL     URLCheck // nil: GET /v1/ops/url-check answers 503
	// AdmitURL returns an error for a callback URL that the egress policy never allows. The error
	// contains the name in field. nil: all URLs are accepted.
	AdmitURL func(field, raw string) error
	Callers  engine.Callers // nil: every caller has the default rate
	Grants   LoadGrants     // nil: no load run has a grant, and the routes of grants answer 503
	// LoadLocal accepts load runs without a grant over loopback. Set it only for an embedded
	// notifyd that calls no real providers, because a tunnel from another machine may end on
	// loopback too.
	LoadLocal bool
	// SharedTokens enforce callers' rates for all processes together. nil: there is only one
	// process.
	SharedTokens SharedTokens
	Receipts     map[string]Receipt // by provider; nil: no receipts
	Tail         Tail               // required
	Doctor       Report             // nil: GET /v1/ops/doctor answers 503
	Lag          Report             // nil: GET /v1/ops/lag answers 503
	Debug        Report             // nil: GET /v1/ops/debug answers 503
	// Backup takes a snapshot for a backup. nil: GET /v1/ops/backup answers 503.
	Backup   func(context.Context) (Snapshot, error)
	Rates    Report // nil: GET /v1/ops/rates answers 503
	Accounts Report // nil: GET /v1/ops/accounts answers 503
	// Page makes the operator page, which is served under /ui/. The page calls the handler api with
	// the token of its user. nil: there is no page.
	Page  func(api http.Handler) http.Handler
	Ready func(context.Context) error // nil: ready unless draining
	// Warnings returns short codes of problems that do not stop the server from accepting requests.
	// nil: no warnings.
	Warnings func() []string
	Version  string // version of the program, for /healthz; empty: not shown
	// LaneStop returns the reason why no call of a lane can be made now. ok is false if calls can
	// be made. A nil function means that this process does not know.
	LaneStop func(notify.Lane) (stop LaneStop, ok bool)
	// Admission refuses batches and fan-outs during an overload. nil: all are admitted.
	Admission *limit.Admission
	// MailHold is the longest time for which a worker delays a mail, to send it together with other
	// mails of the same content. 0: workers delay no mails.
	MailHold time.Duration
	Metrics  prometheus.Gatherer // nil: no route /metrics
	Hooks    Hooks
	Tracer   *trace.Tracer // nil: no spans; a traceparent is still passed on

	// PlainCallbacks allows http in callers' base URLs, as the egress policy does.
	PlainCallbacks bool
	Log            *slog.Logger     // nil: discarded
	Now            func() time.Time // nil: time.Now
}

// Hooks are callbacks for metrics; each may be nil. The goroutine of the request calls them, so
// they must not block.
type Hooks struct {
	// Request: a request was answered. route is the pattern of its route, or "other" if it matched
	// no route. bytesIn and bytesOut are the sizes of the bodies. bytesIn counts the bytes as read
	// from the connection, so before decompression.
	Request func(route, method string, status int, took time.Duration, bytesIn, bytesOut int64)
	// InFlight: the number of requests in progress changed by delta.
	InFlight func(delta int)
	// Refused: a request was refused before its handler. reason is one of these:
	//   - a limit of the server: "in_flight", "overload", "memory", "receipts", "pages", "streams";
	//   - a limit of one caller: "rate", "caller_in_flight", "caller_memory", "caller_streams";
	//   - "disabled": the caller is disabled;
	//   - "slow": a request without a token was cut off, because its body had taken the longest to read;
	//   - "connections": a connection was closed to make room for another connection;
	//   - "load": a load run has no valid grant.
	Refused func(reason string)
	// Unguarded: a request was accepted without checking its idempotency key, because its caller
	// allowed at-least-once. name is the scope of the key, for example "POST /v1/triggers".
	Unguarded func(name string)
}

func (h *Hooks) refused(reason string) {
	if h.Refused != nil {
		h.Refused(reason)
	}
}
