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

// Version is the version of the rules by which this build makes triggers from a request. The
// reservation of the idempotency key stores it, because a build with another version could not make
// the same triggers again.
const Version = 2 // version 1 derived the ids of a batch with SHA-256

// Config configures a Service. Triggers, Callers, Idem, Later and Egress are required. A zero value
// in any other field means its default.
type Config struct {
	Triggers engine.Triggers
	Callers  engine.Callers
	Idem     request.Idem
	Later    Later
	// Egress decides which URLs are allowed. The Service makes no calls.
	Egress *Egress
	// Census counts the waiting triggers of callers. Default: a new Census.
	Census *Census

	// MaxBatch is the largest number of items in a batch.
	MaxBatch int `default:"1000" min:"1"`
	// MaxDelay is how far into the future a trigger may be due.
	MaxDelay time.Duration `default:"8784h" min:"0"`
	// Jitter spreads fire times if a request does not set its own jitter. It only makes a fire time
	// later, by at most a tenth of the delay.
	Jitter time.Duration `min:"0"`
	// MaxJitter is the largest jitter that a request may set.
	MaxJitter time.Duration `default:"1h"`
	// MaxPending is how many triggers of a caller may wait. The record of a caller may set another
	// limit.
	MaxPending int `default:"1000000" min:"1"`
	// Orphan is how long a message waits for its state row before it is dropped. Orphan in every
	// DispatcherConfig must be at least this value.
	Orphan time.Duration `default:"1m" min:"1s"`
	// Lease is how long a request may work on a reserved idempotency key before a repeat takes over
	// the key.
	Lease time.Duration `default:"30s" min:"1s"`
	// Keep is how long an idempotency key is stored at least.
	Keep time.Duration `default:"24h"`
	// Grace is how long an idempotency key is stored after the last trigger of its request was due.
	Grace time.Duration `default:"1h" min:"0"`
	// Owner is the name of this process in leases. It must differ between processes. Default: a new
	// id.
	Owner string
	// Exclusive means that no other process can have Idem open (see request.Once).
	Exclusive bool
	// Gate returns an error while the process cannot store more. The caller gets that error. Gate is
	// called before a trigger is made or moved, never before a cancel. Default: never an error.
	Gate func() error
	// Events are called when something happens. Default: no calls.
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
		return errors.New("trigger: Jitter must be at most MaxJitter, and Keep must be at least Lease")
	}
	return setting.Err("trigger", &c)
}

// Service registers, shows and changes triggers. Its methods may be called from any goroutine and
// keep no reference to their arguments. All their errors are *notify.Error.
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
		Idem: cfg.Idem, Version: Version, Newer: errNewerRelease, Lease: cfg.Lease, Keep: cfg.Keep, Grace: cfg.Grace,
		Owner: cfg.Owner, Exclusive: cfg.Exclusive, Hit: cfg.hit, Logger: cfg.Logger,
	}}, nil
}

// errNewerRelease is the error for a key that a newer release has reserved.
var errNewerRelease = &notify.Error{
	Kind: notify.KindUnavailable, Code: "trigger_version", RetryAfter: retryLater,
	Msg: "a newer release of notifyd has reserved this Idempotency-Key; only a process of that release can answer the request",
}

// callerOf returns the record of a caller that may register triggers. It returns
// notify.KindForbidden if the caller is disabled, and notify.KindConflict if the caller has no
// record or no usable secret.
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

// retryLater is how long a caller must wait before it repeats a request that failed because of a
// store.
const retryLater = 2 * time.Second

// unavailable replaces an internal error of a store by an error that a caller may see.
func unavailable(what string, err error) error {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Kind != notify.KindInternal {
		return err
	}
	return notify.Unavailable(what, retryLater, err)
}
