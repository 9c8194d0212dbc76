package outcomehook

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Config configures a Teller. Letters, Callers, Meta and Triggers are required. Every other field
// has a default.
type Config struct {
	Letters engine.DeadLetters
	Callers engine.Callers
	Meta    engine.Meta
	// Triggers is a *trigger.Service.
	Triggers Triggers
	// Gather is how long a new failure waits for other failures, so that one trigger contains all
	// of them.
	Gather time.Duration `default:"1s"`
	// Every is the time between two reads of the feeds while there is no new failure. So it is also
	// the longest time until the Teller tries again after an error or notices a changed record of a
	// caller.
	Every time.Duration `default:"30s"`
	// Told is called with the number of failures in each trigger that was made. May be nil.
	Told func(n int)
	// Refused is called with an error code each time no trigger could be made for failures of a
	// caller. May be nil.
	Refused func(code string)
	// Logger logs errors.
	Logger *slog.Logger `default:"discard"`

	hit func(string) // killpoint.Hit, or a test's function
}

// Triggers makes the triggers. If a trigger with this base exists, RegisterInternal returns that
// trigger, and created is false.
type Triggers interface {
	RegisterInternal(ctx context.Context, caller string, base notify.Base, url string, payload []byte, trace string) (row engine.Trigger, created bool, err error)
}

// Teller makes triggers from the feeds of dead letters. Only one Teller may run on a store.
type Teller struct {
	cfg  Config
	wake chan struct{} // contains a token when there are new dead letters

	// Only the goroutine of Run uses the fields below.
	lastToldSeq map[string]uint64 // by caller: sequence number of the last failure that is in a trigger
	refused     map[string]string // by caller: code of the last error, so that it is logged once
}

// New returns a Teller; Run starts the work. It returns an error if a required field is missing.
func New(cfg Config) (*Teller, error) {
	if cfg.Letters == nil || cfg.Callers == nil || cfg.Meta == nil || cfg.Triggers == nil {
		return nil, errors.New("outcomehook: Config must have Letters, Callers, Meta and Triggers")
	}
	cfg = setting.Fill(cfg)
	if cfg.hit == nil {
		cfg.hit = killpoint.Hit
	}
	return &Teller{cfg: cfg, wake: make(chan struct{}, 1), lastToldSeq: map[string]uint64{}, refused: map[string]string{}}, nil
}

// Watch returns a wrapper of d. Each Put of the wrapper wakes the Teller.
func (t *Teller) Watch(d engine.DeadLetters) engine.DeadLetters { return wakingLetters{d, t} }

type wakingLetters struct {
	engine.DeadLetters
	t *Teller
}

func (w wakingLetters) Put(ctx context.Context, ds []engine.DeadLetter) error {
	err := w.DeadLetters.Put(ctx, ds)
	select { // after an error too: the dead letters may have been stored
	case w.t.wake <- struct{}{}:
	default:
	}
	return err
}

// Run makes triggers until ctx ends, and then returns nil.
func (t *Teller) Run(ctx context.Context) error {
	every := time.NewTicker(t.cfg.Every)
	defer every.Stop()
	for {
		t.tellAllCallers(ctx)
		select {
		case <-every.C:
		case <-t.wake:
			notify.Sleep(ctx, t.cfg.Gather)
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// tellAllCallers makes triggers for every caller that has an outcomes URL. An error of one caller
// does not delay the other callers.
func (t *Teller) tellAllCallers(ctx context.Context) {
	callers, err := t.cfg.Callers.List(ctx)
	if err != nil {
		t.reportRefusal(ctx, "", err)
		return
	}
	delete(t.refused, "")
	for i := range callers {
		c := &callers[i]
		if c.OutcomesURL == "" || c.Disabled {
			continue
		}
		if err := t.createTriggers(ctx, c); err != nil {
			t.reportRefusal(ctx, c.ID, err)
			continue
		}
		delete(t.refused, c.ID)
	}
}

// reportRefusal counts an error, and logs it if the caller's last error had another code.
func (t *Teller) reportRefusal(ctx context.Context, caller string, err error) {
	if ctx.Err() != nil {
		return
	}
	code := errorCode(err)
	if t.cfg.Refused != nil {
		t.cfg.Refused(code)
	}
	if t.refused[caller] != code {
		t.cfg.Logger.Warn("cannot make triggers for a caller's failures; will try again", "caller", caller, "err", err)
		t.refused[caller] = code
	}
}

// createTriggers makes triggers from all failures in a caller's feed that are in no trigger yet.
func (t *Teller) createTriggers(ctx context.Context, c *engine.Caller) error {
	at, err := t.lastTold(ctx, c.ID)
	if err != nil {
		return err
	}
	for {
		ds, err := t.cfg.Letters.Feed(ctx, c.ID, at, maxOutcomes)
		if err != nil || len(ds) == 0 {
			return err
		}
		if n := countSkipped(ds, c.OutcomesSince); n > 0 {
			at = ds[n-1].Seq
			if err := t.storeLastTold(ctx, c.ID, at); err != nil {
				return err
			}
			continue
		}
		body, n, err := packFailures(c.ID, ds)
		if err != nil {
			return err
		}
		first := &ds[0]
		// Seq is part of the id too. After a store was restored, the same failure may have another
		// sequence number, and must then make another trigger.
		base := triggerBase(first.LastFailed, "outcomes", c.ID, first.ID.String(), first.Seq, first.Epoch)
		trace := commonTrace(ds[:n], func(d *engine.DeadLetter) string { return d.Trace })
		row, created, err := t.cfg.Triggers.RegisterInternal(ctx, c.ID, base, c.OutcomesURL, body, trace)
		if err != nil {
			return err
		}
		t.cfg.hit("outcomes-before-cursor")
		at = ds[n-1].Seq
		if !created { // the trigger was made before a crash, from the failures that existed at that time
			was, err := readTold(row.Payload, func(p *Payload) bool {
				return len(p.Outcomes) > 0 && p.Outcomes[0].Seq == first.Seq && p.Last >= first.Seq
			})
			if err != nil {
				return err
			}
			at = was.Last
		} else if t.cfg.Told != nil {
			t.cfg.Told(n)
		}
		if err := t.storeLastTold(ctx, c.ID, at); err != nil {
			return err
		}
	}
}

// packFailures makes one payload from the first dead letters in ds, as many as fit, but at least
// one. n is the number of dead letters in the payload. packFailures stops before a dead letter
// whose channel is the channel of triggers, because it must not be sent; see countSkipped.
func packFailures(caller string, ds []engine.DeadLetter) (body []byte, n int, err error) {
	p := newPacker(caller)
	for i := range ds {
		d := &ds[i]
		if i > 0 && d.Channel == deadletter.ChannelTrigger {
			break
		}
		ok, err := p.add(Outcome{
			ID: d.ID.String(), Epoch: d.Epoch, Seq: d.Seq, Status: d.Ended().String(), Campaign: d.Campaign, Channel: d.Channel,
			Category: d.Category, User: d.User, Template: d.Template, Class: d.Class, Code: d.Code, Provider: d.Provider,
			Attempts: d.Attempts, At: time.UnixMilli(d.LastFailed).UTC(), TraceID: notify.TraceID(d.Trace),
		})
		if err != nil {
			return nil, 0, err
		}
		if !ok {
			break
		}
		p.Last = d.Seq
	}
	body, err = json.Marshal(p.Payload)
	return body, len(p.Outcomes), err
}

// countSkipped returns how many dead letters at the beginning of ds are not sent to the caller. It
// skips those that failed before the time in the parameter since (in ms since 1970). It also skips
// the dead letters of failed triggers, because otherwise a failed trigger would cause another
// trigger, and so on.
func countSkipped(ds []engine.DeadLetter, since int64) (n int) {
	for n < len(ds) && (ds[n].LastFailed < since || ds[n].Channel == deadletter.ChannelTrigger) {
		n++
	}
	return n
}

func lastToldKey(caller string) string { return "outcomes_told/" + caller }

// lastTold returns the sequence number of the last failure that is in a trigger for the caller.
func (t *Teller) lastTold(ctx context.Context, caller string) (uint64, error) {
	if at, ok := t.lastToldSeq[caller]; ok {
		return at, nil
	}
	b, err := t.cfg.Meta.GetMeta(ctx, lastToldKey(caller))
	if err != nil {
		return 0, err
	}
	var at uint64
	if len(b) != 0 {
		if len(b) != 8 {
			return 0, fmt.Errorf("outcomehook: the stored feed position of caller %q has %d bytes, but must have 8 bytes", caller, len(b))
		}
		at = binary.BigEndian.Uint64(b)
	}
	t.lastToldSeq[caller] = at
	return at, nil
}

// storeLastTold stores seq, the sequence number of the last failure that is in a trigger for the
// caller.
func (t *Teller) storeLastTold(ctx context.Context, caller string, seq uint64) error {
	delete(t.lastToldSeq, caller) // after an error the stored value is unknown and is read again
	if err := t.cfg.Meta.PutMeta(ctx, lastToldKey(caller), binary.BigEndian.AppendUint64(nil, seq)); err != nil {
		return err
	}
	t.lastToldSeq[caller] = seq
	return nil
}
