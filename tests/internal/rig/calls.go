package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// Client returns a client whose token has all scopes.
func (v *Victim) Client() *api.Client { return v.client }

// URL returns the base URL of the API. It stays the same over restarts.
func (v *Victim) URL() string { return v.client.BaseURL }

// Control returns the URL of the simulators' control API.
func (v *Victim) Control() string { return v.control }

// Pids returns the process ids of notifyd and of the simulators.
func (v *Victim) Pids() (notifyd, simulators int) { return v.proc.Pid(), v.sims.Pid() }

// TokenFile returns the path of the file with the clients' token.
func (v *Victim) TokenFile() string { return filepath.Join(v.cfg.Data, "token") }

// CallbackURL returns the base URL of the simulated receiver of triggers.
func (v *Victim) CallbackURL(ctx context.Context) (string, error) {
	var urls simulator.URLs
	err := v.get(ctx, "/urls.json", &urls)
	return urls.Callback, err
}

// Taken returns how many triggers the receiver of callbacks has accepted.
func (v *Victim) Taken(ctx context.Context) (n int64, err error) {
	var sum simulator.CallTotals
	err = v.get(ctx, "/callbacks/totals", &sum)
	return sum.Taken, err
}

// Call is one callback as the receiver recorded it.
type Call = simulator.Call

// Due returns a trigger that fires exactly at a moment. The query of its URL has the moment,
// too, so that the receiver can measure its lateness.
func Due(url string, at time.Time) api.Trigger {
	at = at.UTC().Truncate(time.Millisecond)
	return api.Trigger{CallbackURL: fmt.Sprintf("%s?due=%d", url, at.UnixMilli()), FireAt: &at, Exact: true, Payload: []byte(`{"n":1}`)}
}

// Dues has acknowledged triggers or scheduled pushes by id. The value is the due time, before
// which they must not be sent.
type Dues map[string]time.Time

// IDs of them.
func (d Dues) IDs() []string { return slices.Collect(maps.Keys(d)) }

// TooEarly is a trigger or push that was sent too early, and by how much.
type TooEarly struct {
	ID string
	By time.Duration
}

// Fired is the record of the receiver of callbacks, compared with Dues.
type Fired struct {
	First   map[string]time.Time // time of the first accepted call, by trigger
	Lost    []string             // triggers that were never called
	Twice   int64                // calls beyond the first of a trigger
	Unknown int64                // calls of triggers that are not in Dues
	Early   []TooEarly
	Latest  time.Duration // the greatest lateness of a first call
}

// Fired compares the calls that the receiver recorded with the acknowledged triggers.
func (v *Victim) Fired(ctx context.Context, d Dues) (f Fired, err error) {
	f.First = map[string]time.Time{}
	err = v.Calls(ctx, func(c Call) {
		due, ours := d[c.ID]
		if !ours {
			f.Unknown++
			return
		}
		if c.At.Before(due) {
			f.Early = append(f.Early, TooEarly{c.ID, due.Sub(c.At)})
		}
		if _, again := f.First[c.ID]; again {
			f.Twice++
		} else if c.Taken {
			f.First[c.ID] = c.At
			f.Latest = max(f.Latest, c.At.Sub(due))
		}
	})
	for id := range d {
		if _, there := f.First[id]; !there {
			f.Lost = append(f.Lost, id)
		}
	}
	return f, err
}

// SentEarly returns the pushes that were sent to a provider before they were due, and the
// greatest lateness of a push.
func (v *Victim) SentEarly(ctx context.Context, d Dues) (early []TooEarly, latest time.Duration, err error) {
	for id, due := range d {
		at, err := v.SentAt(ctx, id)
		if err != nil {
			return early, latest, err
		}
		switch {
		case at.IsZero():
		case at.Before(due):
			early = append(early, TooEarly{id, due.Sub(at)})
		default:
			latest = max(latest, at.Sub(due))
		}
	}
	return early, latest, nil
}

// Calls passes every recorded callback to fn. Callbacks of one trigger come in the order in
// which the receiver got them.
func (v *Victim) Calls(ctx context.Context, fn func(Call)) error {
	b, err := fetch(ctx, &http.Client{Timeout: 5 * time.Minute}, http.MethodGet, v.control+"/callbacks/dump", "")
	for line := range bytes.Lines(b) {
		var c Call
		if err == nil {
			err = json.Unmarshal(line, &c)
		}
		if err != nil {
			break
		}
		fn(c)
	}
	return err
}
