package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// Result has the counts of a check of Promises. All counts are of receivers, unless noted.
type Result struct {
	Accepted  int64 // acknowledged by the server
	Terminal  int64 // in a terminal state
	Lost      int64 // not terminal; or their state is sent or delivered, but no provider accepted them
	Unknown   int64 // in state UNKNOWN
	Failed    int64 // in state FAILED
	Ambiguous int64 // calls that a provider accepted although its answer did not say so, e.g. because it was an error
	NoID      int64 // receivers in calls without a notification id

	Duplicates int64 // calls that a provider accepted again for the same id and address
	Bound      int64 // allowed number of duplicates: receivers that the rows record as resent
	Reordered  int64 // first attempts out of their user's order
}

// Check waits until every acknowledged receiver has a terminal state, but not longer than limit.
// Then it compares the states with the ledger of the simulated providers.
func (v *Victim) Check(ctx context.Context, p *Promises, limit time.Duration) (out Result, err error) {
	defer Catch(&err)
	var r Result
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Accepted = int64(len(p.ids))
	for _, f := range p.fans {
		r.Accepted += int64(f.Count - f.Rejected)
	}
	fmt.Fprintf(v.cfg.Out, "  promised %d receivers in %d singles and %d fan-outs; waiting until all have ended\n", r.Accepted, len(p.ids), len(p.fans))
	deadline := time.Now().Add(limit)
	reached := map[string]bool{} // ids whose state says that a provider accepted them
	open := 0
	for _, id := range p.ids {
		state := Must(v.terminal(ctx, id, deadline))
		if s, _ := notify.ParseState(state); !s.Terminal() {
			if open++; open <= 5 {
				v.explainOpen(ctx, id, state)
			}
		}
		r.count(state, 1)
		if state == notify.Sent.String() || state == notify.Delivered.String() {
			reached[id] = true
		}
	}
	for _, f := range p.fans {
		counts := Must(v.counts(ctx, notify.ID{Base: f.Base}.String(), int64(f.Count-f.Rejected), deadline))
		if terminalOf(counts) < int64(f.Count-f.Rejected) {
			fmt.Fprintf(v.cfg.Out, "  fan-out %s of %d: %v\n", f.Base, f.Count-f.Rejected, counts)
		}
		took := int64(0)
		for state, n := range counts {
			r.count(state, n)
			if state == notify.Sent.String() || state == notify.Delivered.String() {
				took += n
			}
		}
		ids := Must(v.ledgerBase(ctx, f))
		r.Lost += max(took-ids, 0) // sent or delivered by their state, but not in the ledger
	}
	missing := Must(v.ledgerMissing(ctx, reached))
	r.Lost += missing + r.Accepted - r.Terminal
	err = v.ledgerTotals(ctx, &r) // sets fields of r, so it must run before r is returned
	return r, err
}

func terminalOf(counts map[string]int64) int64 {
	n := int64(0)
	for state, k := range counts {
		if s, _ := notify.ParseState(state); s.Terminal() {
			n += k
		}
	}
	return n
}

// explainOpen prints what is known about an id that has no terminal state.
func (v *Victim) explainOpen(ctx context.Context, id, state string) {
	tl, err := v.client.Timeline(ctx, id)
	b, _ := json.Marshal(tl)
	fmt.Fprintf(v.cfg.Out, "  not terminal: %s is %s: %s %v\n", id, state, b, err)
}

func (r *Result) count(state string, n int64) {
	s, _ := notify.ParseState(state)
	if s.Terminal() {
		r.Terminal += n
	}
	switch s {
	case notify.Unknown:
		r.Unknown += n
	case notify.Failed:
		r.Failed += n
	}
}

func (v *Victim) terminal(ctx context.Context, id string, deadline time.Time) (string, error) {
	for {
		st, err := v.client.Notification(ctx, id)
		if err != nil && notify.KindOf(err) != notify.KindUnavailable {
			if kind := notify.KindOf(err); kind == notify.KindNotFound || kind == notify.KindGone {
				return "LOST", nil
			}
			return "", err
		}
		if s, _ := notify.ParseState(st.Status); s.Terminal() || time.Now().After(deadline) {
			return st.Status, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (v *Victim) counts(ctx context.Context, id string, want int64, deadline time.Time) (map[string]int64, error) {
	for {
		sum, err := v.client.Summary(ctx, id, api.Page{Limit: 10_000})
		switch {
		case err == nil, notify.KindOf(err) == notify.KindUnavailable:
		case notify.KindOf(err) == notify.KindNotFound, notify.KindOf(err) == notify.KindGone:
			return nil, nil // lost
		default:
			return nil, err
		}
		done := int64(0)
		counts := map[string]int64{}
		for state, n := range sum.Counts {
			counts[state] = int64(n)
			if s, _ := notify.ParseState(state); s.Terminal() {
				done += int64(n)
			}
		}
		if done >= want || time.Now().After(deadline) {
			return counts, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Rows adds the largest allowed number of duplicates to r.Bound. The outcome rows contain it: they
// count the receivers that were sent again although the provider may have accepted an earlier call.
// If there are more duplicates, Rows prints them. notifyd must have stopped, because Rows opens
// notifyd's store.
func (v *Victim) Rows(ctx context.Context, r *Result) error {
	s, err := pebble.Open(pebble.Config{Dir: filepath.Join(v.cfg.Data, "data", "store")})
	if err != nil {
		return err
	}
	rows := map[notify.Base][]notify.Row{}
	err = s.Status().Scan(ctx, 0, 1<<60, func(row *notify.Row) error {
		r.Bound += int64(row.Resent)
		kept := *row // the scan reuses row, so a copy is needed
		kept.Exceptions = append([]notify.Exception(nil), row.Exceptions...)
		rows[row.Key.Chunk.Base] = append(rows[row.Key.Chunk.Base], kept)
		return nil
	})
	if err = errors.Join(err, s.Close()); err != nil || r.Duplicates <= r.Bound {
		return err
	}
	return v.explainDuplicates(ctx, rows)
}

// explainDuplicates prints each request with more duplicates in the providers' ledger than its rows
// allow.
func (v *Victim) explainDuplicates(ctx context.Context, rows map[notify.Base][]notify.Row) error {
	var out struct{ Recent []simulator.Duplicate }
	if err := v.get(ctx, "/ledger/duplicates?limit=1000", &out); err != nil {
		return err
	}
	taken := map[notify.Base]int64{}
	for _, d := range out.Recent {
		if id, err := notify.ParseID(d.ID); err == nil {
			taken[id.Base]++
		}
	}
	for base, n := range taken {
		known := int64(0)
		for i := range rows[base] {
			known += int64(rows[base][i].Resent)
		}
		if n <= known {
			continue
		}
		fmt.Fprintf(v.cfg.Out, "  %d duplicates of %s, its rows record %d\n", n, base, known)
		for _, d := range out.Recent {
			if id, err := notify.ParseID(d.ID); err == nil && id.Base == base {
				fmt.Fprintf(v.cfg.Out, "    %s taken %s and %s\n", d.ID, d.FirstAt.Format("15:04:05.000"), d.At.Format("15:04:05.000"))
			}
		}
		for i := range rows[base] {
			x := &rows[base][i]
			fmt.Fprintf(v.cfg.Out, "    row %+v: of %d done to %d, started to %d, starts=%d resent=%d done=%v, %s/%d/%d, at %s, default %v, %d exceptions\n",
				x.Key, x.Count, x.DoneUpTo, x.StartedUpTo, x.Starts, x.Resent, x.Done, x.Topic, x.LogPart, x.Offset,
				time.UnixMilli(x.Updated).Format("15:04:05.000"), x.Default.State, len(x.Exceptions))
			for _, e := range x.Exceptions {
				fmt.Fprintf(v.cfg.Out, "      %+v\n", e)
			}
		}
	}
	return nil
}
