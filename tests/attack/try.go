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
	name    string // of its group alone
	does    string
	refused string // describes a refusal
	// run makes the try. through says what got through; "" if the try was refused.
	// rig.Ok ends it if the try could not be made.
	run func(ctx context.Context) (through string)
}

// group has the tries of one kind. at is the number of tries that run at the same time.
type group struct {
	name  string
	at    int
	tries func(r *world) // calls try and its like for each
}

// groups returns the table. The last groups come last because they exhaust the servers.
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
		{"left", 1, leftTries},
	}
}

// tally counts the tries and those that got through.
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
			return fmt.Errorf("%s/%s stands twice in the table, or does not say what it does and what a refusal is", g.name, x.name)
		}
		names[x.name] = true
		work.Go(func() error {
			if err := ctx.Err(); err != nil { // the time of all tries is over, or one could not be made
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

// wants adds a try that is one request of the API: it is refused with one of the statuses.
func (r *world) wants(name, does string, q request, statuses ...int) {
	r.try(name, does, fmt.Sprint("an answer of ", statuses), func(context.Context) string {
		a := r.ask(q)
		return a.when(!slices.Contains(statuses, a.status))
	})
}

// eventually calls f until it returns true or limit is over. It reports whether f returned true.
func eventually(ctx context.Context, limit time.Duration, f func() bool) bool {
	was := rig.Within(ctx, limit, 20*time.Millisecond, f)
	rig.Ok(ctx.Err())
	return was
}
