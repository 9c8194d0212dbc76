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

// Config of a Teller. Letters, Callers, Meta and Triggers are required; the
// zero value of the others means their default.
type Config struct {
	Letters engine.DeadLetters
	Callers engine.Callers
	Meta    engine.Meta
	// Triggers is a *trigger.Service.
	Triggers Triggers
	// Gather is how long a failure waits for others to be told with it.
	Gather time.Duration `default:"1s"`
	// Every is how often callers are looked at without a new failure: after a
	// refusal, or a change of their record.
	Every time.Duration `default:"30s"`
	// Told is called with the failures of each trigger that was made. May be nil.
	Told func(n int)
	// Refused is called for each look at a caller that made no trigger although
	// there are failures to tell, with the code of the error. May be nil.
	Refused func(code string)
	// Logger gets what goes wrong.
	Logger *slog.Logger `default:"discard"`

	hit func(string) // killpoint.Hit, or a test's
}

// Triggers makes the triggers.
type Triggers interface {
	Own(ctx context.Context, caller string, base notify.Base, url string, payload []byte, trace string) (row engine.Trigger, created bool, err error)
}

// Teller tells callers. Only one may run on a store.
type Teller struct {
	cfg  Config
	wake chan struct{} // one token: there are new dead letters

	// Of Run alone.
	at      map[string]uint64 // Seq told of, by the callers looked at
	refused map[string]string // code of the last refusal, by caller: said once
}

// New returns a Teller; it starts nothing.
func New(cfg Config) (*Teller, error) {
	if cfg.Letters == nil || cfg.Callers == nil || cfg.Meta == nil || cfg.Triggers == nil {
		return nil, errors.New("outcome: Letters, Callers, Meta and Triggers are required")
	}
	cfg = setting.Fill(cfg)
	if cfg.hit == nil {
		cfg.hit = killpoint.Hit
	}
	return &Teller{cfg: cfg, wake: make(chan struct{}, 1), at: map[string]uint64{}, refused: map[string]string{}}, nil
}

// Watch returns d, of which each Put makes the Teller look.
func (t *Teller) Watch(d engine.DeadLetters) engine.DeadLetters { return watched{d, t} }

type watched struct {
	engine.DeadLetters
	t *Teller
}

func (w watched) Put(ctx context.Context, ds []engine.DeadLetter) error {
	err := w.DeadLetters.Put(ctx, ds)
	select { // also after an error: they may be stored
	case w.t.wake <- struct{}{}:
	default:
	}
	return err
}

// Run tells callers until ctx ends, and returns nil then.
func (t *Teller) Run(ctx context.Context) error {
	every := time.NewTicker(t.cfg.Every)
	defer every.Stop()
	for {
		t.look(ctx)
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

// look tells every caller that has a URL what it has not been told. One that is
// refused holds up nobody.
func (t *Teller) look(ctx context.Context) {
	callers, err := t.cfg.Callers.List(ctx)
	if err != nil {
		t.trouble(ctx, "", err)
		return
	}
	delete(t.refused, "")
	for i := range callers {
		c := &callers[i]
		if c.OutcomesURL == "" || c.Disabled {
			continue
		}
		if err := t.tell(ctx, c); err != nil {
			t.trouble(ctx, c.ID, err)
			continue
		}
		delete(t.refused, c.ID)
	}
}

func (t *Teller) trouble(ctx context.Context, caller string, err error) {
	if ctx.Err() != nil {
		return
	}
	code := code(err)
	if t.cfg.Refused != nil {
		t.cfg.Refused(code)
	}
	if t.refused[caller] != code {
		t.cfg.Logger.Warn("failures are not told to their caller, will try again", "caller", caller, "err", err)
		t.refused[caller] = code
	}
}

// tell makes triggers of what a caller has not been told, to the end of its feed.
func (t *Teller) tell(ctx context.Context, c *engine.Caller) error {
	at, err := t.place(ctx, c.ID)
	if err != nil {
		return err
	}
	for {
		ds, err := t.cfg.Letters.Feed(ctx, c.ID, at, maxOutcomes)
		if err != nil || len(ds) == 0 {
			return err
		}
		if n := passed(ds, c.OutcomesSince); n > 0 {
			at = ds[n-1].Seq
			if err := t.save(ctx, c.ID, at); err != nil {
				return err
			}
			continue
		}
		body, n, err := pack(c.ID, ds)
		if err != nil {
			return err
		}
		first := &ds[0]
		// In a store that was restored and numbers anew it is another trigger.
		base := triggerBase(first.LastFailed, "outcomes", c.ID, first.ID.String(), first.Seq, first.Epoch)
		trace := commonTrace(ds[:n], func(d *engine.DeadLetter) string { return d.Trace })
		row, created, err := t.cfg.Triggers.Own(ctx, c.ID, base, c.OutcomesURL, body, trace)
		if err != nil {
			return err
		}
		t.cfg.hit("outcomes-before-cursor")
		at = ds[n-1].Seq
		if !created { // it was made before a crash, of what was there then
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
		if err := t.save(ctx, c.ID, at); err != nil {
			return err
		}
	}
}

// pack makes a payload of the first n dead letters: as many as fit, one at least,
// and none behind a trigger.
func pack(caller string, ds []engine.DeadLetter) (body []byte, n int, err error) {
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

// passed counts the leading dead letters that are not told: those that failed
// before since, ms, and triggers. A trigger of ours that failed would make the
// next one.
func passed(ds []engine.DeadLetter, since int64) (n int) {
	for n < len(ds) && (ds[n].LastFailed < since || ds[n].Channel == deadletter.ChannelTrigger) {
		n++
	}
	return n
}

func metaKey(caller string) string { return "outcomes_told/" + caller }

// place is the Seq up to which a caller has been told.
func (t *Teller) place(ctx context.Context, caller string) (uint64, error) {
	if at, ok := t.at[caller]; ok {
		return at, nil
	}
	b, err := t.cfg.Meta.GetMeta(ctx, metaKey(caller))
	if err != nil {
		return 0, err
	}
	var at uint64
	if len(b) != 0 {
		if len(b) != 8 {
			return 0, fmt.Errorf("outcome: the place of %q has %d bytes, not 8", caller, len(b))
		}
		at = binary.BigEndian.Uint64(b)
	}
	t.at[caller] = at
	return at, nil
}

func (t *Teller) save(ctx context.Context, caller string, at uint64) error {
	delete(t.at, caller) // after an error it is read again
	if err := t.cfg.Meta.PutMeta(ctx, metaKey(caller), binary.BigEndian.AppendUint64(nil, at)); err != nil {
		return err
	}
	t.at[caller] = at
	return nil
}
