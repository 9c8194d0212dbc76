package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// try is a row of the table.
type try struct {
	name    string // unique in its group
	does    string // describes the attack
	refused string // describes a refusal
	// run makes the try. It returns "" if the server refused the try. Otherwise it returns a
	// description of the answer that got through. run panics (rig.Ok) if the try could not be made.
	run func(ctx context.Context) string
}

// group has the tries of one kind.
type group struct {
	name  string
	at    int            // number of tries that run at the same time
	tries func(r *world) // adds each try of the group to r.tries; see world.try
}

// groups returns the table. The last groups exhaust the servers, so they run after the others.
func groups() []group {
	return []group{
		{"url", 8, urlTries},
		{"address", 16, addressTries},
		{"receiver", 4, receiverTries},
		{"token", 8, tokenTries},
		{"header", 8, headerTries},
		{"jwks", 4, jwksTries},
		{"scope", 8, scopeTries},
		{"owner", 4, ownerTries},
		{"namespace", 4, namespaceTries},
		{"name", 8, nameTries},
		{"request", 4, requestTries},
		{"page", 4, pageTries},
		{"receipt", 4, receiptTries},
		{"listener", 4, listenerTries},
		{"where", 1, whereTries},
		{"label", 1, labelTries},
		{"kafka", 4, kafkaTries},
		{"client", 4, clientTries},
		{"start", 2, startTries},
		{"backup", 1, backupTries},
		{"flood", 1, floodTries},
		{"left", 1, lastTries},
	}
}

// tally counts all tries, and the tries that got through.
type tally struct {
	mu             sync.Mutex
	tried, through int
}

func (t *tally) run(ctx context.Context, r *world, g group, verbose bool) error {
	began := time.Now()
	r.tries = nil
	if err := rig.Try(func() { g.tries(r) }); err != nil {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	names := map[string]bool{}
	got := 0
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(g.at)
	for _, x := range r.tries {
		if names[x.name] || x.does == "" || x.refused == "" {
			return fmt.Errorf("the try %s/%s must be in the table only once, and must describe its attack and a refusal", g.name, x.name)
		}
		names[x.name] = true
		work.Go(func() error {
			if err := ctx.Err(); err != nil { // the run's time is over, or another try could not be made
				return err
			}
			var through string
			if err := rig.Try(func() { through = x.run(ctx) }); err != nil {
				return fmt.Errorf("%s/%s: %w", g.name, x.name, err)
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.tried++
			if through != "" {
				got++
				t.through++
				fmt.Printf("  THROUGH %s/%s: %s (%s; a refusal is %s)\n", g.name, x.name, strings.ReplaceAll(through, "\n", " "), x.does, x.refused)
			}
			if verbose {
				fmt.Printf("  %-10s %-40s %s; a refusal is %s\n", g.name, x.name, x.does, x.refused)
			}
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		name := r.ended()
		if name == "" {
			return err
		}
		fmt.Printf("  THROUGH %s: the server %s ended by itself: %v\n", g.name, name, err)
		t.tried++
		t.through++
		return rig.Try(func() { r.start(context.WithoutCancel(ctx), name) })
	}
	fmt.Printf("  %-10s %3d tries, %d through, %.1f s\n", g.name, len(r.tries), got, time.Since(began).Seconds())
	return nil
}

// try adds a row to the table.
func (r *world) try(name, does, refused string, run func(ctx context.Context) string) {
	r.tries = append(r.tries, try{name, does, refused, run})
}

// tryRequest adds a try that sends one request to the API. The answer is a refusal if it has one of
// the statuses.
func (r *world) tryRequest(name, does string, q request, statuses ...int) {
	r.try(name, does, fmt.Sprint("an answer of ", statuses), func(context.Context) string {
		a := r.ask(q)
		return a.describeIf(!slices.Contains(statuses, a.status))
	})
}

// eventually calls f every 20 ms until f returns true. It returns false if f has not returned true
// within the limit.
func eventually(ctx context.Context, limit time.Duration, f func() bool) bool {
	was := rig.Within(ctx, limit, 20*time.Millisecond, f)
	rig.Ok(ctx.Err())
	return was
}
