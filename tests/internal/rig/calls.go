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

// Client calls notifyd with a token for everything.
func (v *Victim) Client() *api.Client { return v.client }

// URL is where its API is, in all its lives.
func (v *Victim) URL() string { return v.client.BaseURL }

// Control is the URL of the simulators' control.
func (v *Victim) Control() string { return v.control }

// Pids are the processes of notifyd and of the simulators.
func (v *Victim) Pids() (notifyd, simulators int) { return v.proc.Pid(), v.sims.Pid() }

// TokenFile holds the token its clients use.
func (v *Victim) TokenFile() string { return filepath.Join(v.cfg.Data, "token") }

// CallbackURL returns the base URL of the simulated receiver of triggers.
func (v *Victim) CallbackURL(ctx context.Context) (string, error) {
	var urls simulator.URLs
	err := v.get(ctx, "/urls.json", &urls)
	return urls.Callback, err
}

// Taken returns how many triggers the receiver was called for, and took.
func (v *Victim) Taken(ctx context.Context) (n int64, err error) {
	var sum simulator.CallTotals
	err = v.get(ctx, "/callbacks/totals", &sum)
	return sum.Taken, err
}

// Call is one callback as the receiver saw it.
type Call = simulator.Call

// Due is a trigger that fires exactly at a moment. The query of its URL says when.
func Due(url string, at time.Time) api.Trigger {
	at = at.UTC().Truncate(time.Millisecond)
	return api.Trigger{CallbackURL: fmt.Sprintf("%s?due=%d", url, at.UnixMilli()), FireAt: &at, Exact: true, Payload: []byte(`{"n":1}`)}
}

// Dues are triggers or scheduled pushes that were acknowledged, by id, with the moment
// from which they may go.
type Dues map[string]time.Time

// IDs of them.
func (d Dues) IDs() []string { return slices.Collect(maps.Keys(d)) }

// TooEarly is how long before its moment one went.
type TooEarly struct {
	ID string
	By time.Duration
}

// Fired is what the receiver of triggers saw.
type Fired struct {
	First   map[string]time.Time // the first call of each that was taken
	Lost    []string             // that never came
	Twice   int64                // calls beyond the first
	Unknown int64                // calls of others
	Early   []TooEarly
	Latest  time.Duration // the most that a first call came behind its moment
}

// Fired holds what the receiver saw against triggers.
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

// SentEarly returns the pushes that a provider was sent before they were due, and the
// most that one was sent behind its moment.
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

// Calls passes every callback the receiver saw to fn, those of one trigger in
// the order they came.
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
