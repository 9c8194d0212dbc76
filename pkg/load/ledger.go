package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Ledger asks the simulated providers what they received.
type Ledger struct {
	URL    string // of the control listener
	Client *http.Client

	before totals
}

type totals struct {
	IDs        int64 `json:"ids"`
	Deliveries int64 `json:"deliveries"`
	Duplicates int64 `json:"duplicates"`
	Ambiguous  int64 `json:"ambiguous"`
	Order      struct {
		Reordered int64 `json:"reordered"`
	} `json:"order"`
}

// Check is what the ledger says of what was acknowledged.
type Check struct {
	Expected   int64         `json:"expected"`   // receivers acknowledged
	Delivered  int64         `json:"delivered"`  // of them, taken by a provider
	Lost       int64         `json:"lost"`       // neither delivered nor on its way: nothing came any more
	Pending    int64         `json:"pending"`    // on their way when the drain's time was over
	Ended      int64         `json:"ended"`      // not delivered, and the server says so: FAILED, SUPPRESSED, ...
	Duplicates int64         `json:"duplicates"` // takes after the first
	Reordered  int64         `json:"reordered"`  // first deliveries out of their user's order
	Examples   []string      `json:"examples,omitempty"`
	Took       time.Duration `json:"took_ns"` // from the last answer to the last delivery
}

func (l *Ledger) begin(ctx context.Context) (err error) {
	l.before, err = l.totals(ctx)
	return err
}

func (l *Ledger) totals(ctx context.Context) (t totals, err error) {
	err = l.get(ctx, http.MethodGet, "/ledger/totals", nil, &t)
	return t, err
}

const (
	// quietFor is how long nothing must arrive for what is missing to count as lost.
	quietFor = 10 * time.Second
	// maxAsked is of how many that are missing the server is asked one by one.
	maxAsked = 1000
)

// StateOf asks the server where a notification stands; notify.None: it knows of none.
type StateOf func(ctx context.Context, id string) (notify.State, error)

// drain waits until everything acknowledged was delivered, or limit is over, and
// then compares one by one. What is missing while nothing comes in is lost, unless
// the server says that it waits, for a provider that is away, say, or has ended.
func (l *Ledger) drain(ctx context.Context, limit time.Duration, p *promises, state StateOf) (Check, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := Check{Expected: p.n}
	began := time.Now()
	still, last, quiet := time.Now(), int64(-1), false
	heard := began // when somebody last said that more will come
	for {
		t, err := l.totals(ctx)
		if err != nil {
			return c, err
		}
		if t.IDs != last {
			still, last, heard = time.Now(), t.IDs, time.Now()
		}
		quiet = time.Since(still) > quietFor
		over := t.IDs-l.before.IDs >= p.n || time.Since(began) > limit
		if !over && time.Since(heard) > quietFor && time.Since(began) > limit/2 {
			_, ids, err := l.missing(ctx, p, 10)
			if err != nil {
				return c, err
			}
			if open, _ := ask(ctx, ids, state); open > 0 {
				heard = time.Now()
			} else {
				over = true
			}
		}
		if over {
			c.Took = still.Sub(began)
			c.Duplicates = t.Duplicates - l.before.Duplicates
			c.Reordered = t.Order.Reordered - l.before.Order.Reordered
			break
		}
		waitUntil(ctx, time.Now().Add(100*time.Millisecond))
	}
	delivered, ids, err := l.missing(ctx, p, maxAsked)
	if err != nil {
		return c, err
	}
	c.Delivered, c.Examples = delivered, ids[:min(len(ids), 10)]
	missing := c.Expected - c.Delivered
	open, ended := ask(ctx, ids, state)
	switch rest := missing - int64(len(ids)); { // too many to ask of each: they fare like those
	case rest <= 0:
	case open > 0:
		open += rest
	case ended > 0:
		ended += rest
	}
	c.Ended = min(ended, missing)
	c.Pending = min(open, missing-c.Ended)
	if left := missing - c.Ended - c.Pending; quiet {
		c.Lost = left
	} else {
		c.Pending += left
	}
	return c, nil
}

// ask counts those of ids that are on their way, and those that ended without
// having been delivered. Where the server cannot say, they are neither.
func ask(ctx context.Context, ids []string, state StateOf) (open, ended int64) {
	if state == nil {
		return 0, 0
	}
	for _, id := range ids {
		switch s, err := state(ctx, id); {
		case err != nil || s == notify.None:
		case !s.Terminal():
			open++
		case s != notify.Sent && s != notify.Delivered:
			ended++
		}
	}
	return open, ended
}

// missing counts what was delivered, and names the first of what was not: at most
// so many.
func (l *Ledger) missing(ctx context.Context, p *promises, most int) (delivered int64, ids []string, err error) {
	add := func(more ...string) { ids = append(ids, more[:min(len(more), most-len(ids))]...) }
	for rest := p.ids; len(rest) > 0; {
		n := min(len(rest), 100_000)
		var out struct {
			Checked int64    `json:"checked"`
			Count   int64    `json:"missing_count"`
			Missing []string `json:"missing"`
		}
		if err := l.get(ctx, http.MethodPost, "/ledger/check", strings.NewReader(strings.Join(rest[:n], "\n")), &out); err != nil {
			return delivered, ids, err
		}
		delivered += out.Checked - out.Count
		add(out.Missing...)
		rest = rest[n:]
	}
	for i := range p.bases {
		b := &p.bases[i]
		var out struct {
			IDs     int64 `json:"ids"`
			Missing []struct{ From, To uint32 }
		}
		if err := l.get(ctx, http.MethodGet, fmt.Sprintf("/ledger/base?base=%s&expected=%d", b.Base, b.Count), nil, &out); err != nil {
			return delivered, ids, err
		}
		delivered += out.IDs
		if out.IDs >= int64(b.Count-b.Rejected) {
			continue
		}
		for _, m := range out.Missing {
			for i := m.From; i < m.To && len(ids) < most; i++ {
				add(fmt.Sprintf("ntf_%s-%d", b.Base, i))
			}
		}
	}
	return delivered, ids, nil
}

func (l *Ledger) get(ctx context.Context, method, path string, body io.Reader, out any) error {
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, method, l.URL+path, body)
	if err != nil {
		return err
	}
	cl := l.Client
	if cl == nil {
		cl = http.DefaultClient
	}
	resp, err := cl.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	}
	return json.Unmarshal(b, out)
}
