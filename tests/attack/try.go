package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// try is a row of the table.
type try struct {
	name    string // of its group alone
	does    string
	refused string // what a refusal is
	// run makes the try. through says what got through; "" if the try was refused. An
	// error is that the try could not be made.
	run func(ctx context.Context, r *rig) (through string, err error)
}

// group is tries of one kind. at is how many of them are made at a time.
type group struct {
	name  string
	at    int
	tries func(r *rig) ([]try, error)
}

// groups returns the table. The later ones wear the servers out.
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

// tally counts what became of the tries.
type tally struct {
	mu             sync.Mutex
	tried, through int
}

func (t *tally) run(ctx context.Context, r *rig, g group, verbose bool) error {
	began := time.Now()
	tries, err := g.tries(r)
	if err != nil {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	names := map[string]bool{}
	got := 0
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(g.at)
	for _, x := range tries {
		if names[x.name] || x.does == "" || x.refused == "" {
			return fmt.Errorf("%s/%s stands twice in the table, or does not say what it does and what a refusal is", g.name, x.name)
		}
		names[x.name] = true
		work.Go(func() error {
			if err := ctx.Err(); err != nil { // the time of all tries is over, or one could not be made
				return err
			}
			through, err := x.run(ctx, r)
			if err != nil {
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
		return r.start(context.WithoutCancel(ctx), name)
	}
	fmt.Printf("  %-10s %3d tries, %d through, %.1f s\n", g.name, len(tries), got, time.Since(began).Seconds())
	return nil
}

// eventually asks until f is content, or limit is over. It reports whether f was.
func eventually(ctx context.Context, limit time.Duration, f func() (bool, error)) (bool, error) {
	for deadline := time.Now().Add(limit); ; {
		ok, err := f()
		if ok || err != nil || time.Now().After(deadline) {
			return ok, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// wants is a try that is one request of the API: it is refused with one of the statuses.
func wants(name, does string, ask func(r *rig) (answer, error), statuses ...int) try {
	return try{
		name: name, does: does, refused: fmt.Sprint("an answer of ", statuses),
		run: func(_ context.Context, r *rig) (string, error) {
			a, err := ask(r)
			if err != nil {
				return "", err
			}
			if !slices.Contains(statuses, a.status) {
				return a.String(), nil
			}
			return "", nil
		},
	}
}
