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
	Pending    int64         `json:"pending"`    // still coming in when the drain's time was over
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

// quietFor is how long nothing must arrive for what is missing to count as lost.
const quietFor = 10 * time.Second

// drain waits until everything acknowledged was delivered, or limit is over,
// and then compares one by one.
func (l *Ledger) drain(ctx context.Context, limit time.Duration, p *promises) (Check, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := Check{Expected: p.n}
	began := time.Now()
	still, last, quiet := time.Now(), int64(-1), false
	for {
		t, err := l.totals(ctx)
		if err != nil {
			return c, err
		}
		if t.IDs != last {
			still, last = time.Now(), t.IDs
		}
		if t.IDs-l.before.IDs >= p.n || time.Since(began) > limit || (time.Since(still) > quietFor && time.Since(began) > limit/2) {
			quiet = time.Since(still) > quietFor
			c.Took = still.Sub(began)
			c.Duplicates = t.Duplicates - l.before.Duplicates
			c.Reordered = t.Order.Reordered - l.before.Order.Reordered
			break
		}
		waitUntil(ctx, time.Now().Add(100*time.Millisecond))
	}
	for rest := p.ids; len(rest) > 0; {
		n := min(len(rest), 100_000)
		var out struct {
			Checked int64    `json:"checked"`
			Count   int64    `json:"missing_count"`
			Missing []string `json:"missing"`
		}
		if err := l.get(ctx, http.MethodPost, "/ledger/check", strings.NewReader(strings.Join(rest[:n], "\n")), &out); err != nil {
			return c, err
		}
		c.Delivered += out.Checked - out.Count
		c.example(out.Missing...)
		rest = rest[n:]
	}
	for i := range p.bases {
		b := &p.bases[i]
		var out struct {
			IDs     int64 `json:"ids"`
			Missing []struct{ From, To uint32 }
		}
		if err := l.get(ctx, http.MethodGet, fmt.Sprintf("/ledger/base?base=%s&expected=%d", b.Base, b.Count), nil, &out); err != nil {
			return c, err
		}
		c.Delivered += out.IDs
		if out.IDs < int64(b.Count-b.Rejected) {
			for _, m := range out.Missing {
				c.example(fmt.Sprintf("ntf_%s-%d..%d", b.Base, m.From, m.To-1))
			}
		}
	}
	if missing := c.Expected - c.Delivered; quiet {
		c.Lost = missing
	} else {
		c.Pending = missing
	}
	return c, nil
}

func (c *Check) example(ids ...string) {
	c.Examples = append(c.Examples, ids[:min(len(ids), 10-len(c.Examples))]...)
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
