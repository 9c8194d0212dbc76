package trigger

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Version is the version of the way in which this build makes triggers from a request. The
// reservation stores it, because another version could not make the same triggers again.
const Version = 2 // 1 derived the ids of a batch by SHA-256

// Config configures a Service. Triggers, Callers, Idem, Later and Egress are required. The zero
// value of the other fields means their default.
type Config struct {
	Triggers engine.Triggers
	Callers  engine.Callers
	Idem     request.Idem
	Later    Later
	// Egress decides which URLs are admitted. The Service makes no calls.
	Egress *Egress
	// Census counts the waiting triggers of callers. Default: a Census of its own.
	Census *Census

	// MaxBatch is how many items a batch may have.
	MaxBatch int `default:"1000" min:"1"`
	// MaxDelay is how far ahead a trigger may fire.
	MaxDelay time.Duration `default:"8784h" min:"0"`
	// Jitter spreads fire times if a request does not set it: later only, by at most a tenth of the
	// delay.
	Jitter time.Duration `min:"0"`
	// MaxJitter is the largest jitter that a request may set.
	MaxJitter time.Duration `default:"1h"`
	// MaxPending is how many triggers a caller may have waiting, unless the caller's record sets
	// another limit.
	MaxPending int `default:"1000000" min:"1"`
	// Orphan is how long a message waits for its state row before it is dropped. The Dispatchers'
	// value must be at least this.
	Orphan time.Duration `default:"1m" min:"1s"`
	// Lease is how long a request may work on a reserved key before a repeat takes over.
	Lease time.Duration `default:"30s" min:"1s"`
	// Keep is how long a key is kept at least.
	Keep time.Duration `default:"24h"`
	// Grace is how long a key is kept after the last of its triggers was due.
	Grace time.Duration `default:"1h" min:"0"`
	// Owner names this process in leases. It must differ between processes. Default: a fresh id.
	Owner string
	// Exclusive: no other process can have Idem open (request.Once).
	Exclusive bool
	// Gate returns an error for the caller while nothing more can be stored. It is called before a
	// trigger is made or moved, never before a cancel. Default: never an error.
	Gate func() error
	// Events are called when something happens. Default: none.
	Events Events
	// Logger logs failures that do not change an answer.
	Logger *slog.Logger `default:"discard"`

	hit func(string) // killpoint.Hit, or a function of a test
}

func (c Config) withDefaults() Config {
	c = setting.Fill(c)
	if c.Owner == "" {
		c.Owner = notify.NewBase(time.Now()).String()
	}
	if c.Gate == nil {
		c.Gate = func() error { return nil }
	}
	if c.Census == nil {
		c.Census = NewCensus(c.Triggers, false)
	}
	if c.hit == nil {
		c.hit = killpoint.Hit
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Triggers == nil || c.Callers == nil || c.Idem == nil || c.Later == nil || c.Egress == nil:
		return errors.New("trigger: Triggers, Callers, Idem, Later and Egress are required")
	case c.Jitter > c.MaxJitter || c.Keep < c.Lease:
		return errors.New("trigger: Jitter must be at most MaxJitter, and Keep at least Lease")
	}
	return setting.Err("trigger", &c)
}

// Service registers, shows and changes triggers. Its methods may be called from any goroutine and
// keep no reference to their arguments. Their errors are *notify.Error.
type Service struct {
	cfg  Config
	once request.Once
}

// New returns a Service. It starts no goroutine.
func New(cfg Config) (*Service, error) {
	if cfg.Triggers == nil {
		return nil, cfg.validate()
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Service{cfg: cfg, once: request.Once{
		Idem: cfg.Idem, Version: Version, Newer: notify.Unavailable("trigger_version", retryLater, nil), Lease: cfg.Lease, Keep: cfg.Keep, Grace: cfg.Grace,
		Owner: cfg.Owner, Exclusive: cfg.Exclusive, Hit: cfg.hit, Logger: cfg.Logger,
	}}, nil
}

// callerOf returns the record of a caller that may register triggers. A caller without a record has
// no base URLs. It returns notify.KindForbidden for a disabled caller and notify.KindConflict for
// one without a usable secret.
func callerOf(ctx context.Context, s *Service, id string) (*engine.Caller, error) {
	c, ok, err := s.cfg.Callers.Get(ctx, id)
	if err != nil {
		return nil, unavailable("callers", err)
	}
	if !ok {
		c = engine.Caller{ID: id}
	}
	switch {
	case c.Disabled:
		return nil, &notify.Error{Kind: notify.KindForbidden, Code: "caller_disabled", Msg: "the caller is disabled"}
	case len(keysOf(c.Secrets, time.Now().UnixMilli())) > 0:
	case slices.ContainsFunc(c.Secrets, engine.CallerSecret.Sealed):
		return nil, &notify.Error{Kind: notify.KindConflict, Code: "secret_sealed", Msg: "the caller's signing secret cannot be opened; an operator must restore its key file or make a new secret"}
	default:
		return nil, &notify.Error{Kind: notify.KindConflict, Code: "no_secret", Msg: "the caller has no secret to sign callbacks with; an operator must make one"}
	}
	return &c, nil
}

// retryLater is how long a caller is told to wait for a store.
const retryLater = 2 * time.Second

// unavailable turns an internal error of a store into one that a caller may see.
func unavailable(what string, err error) error {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Kind != notify.KindInternal {
		return err
	}
	return notify.Unavailable(what, retryLater, err)
}
