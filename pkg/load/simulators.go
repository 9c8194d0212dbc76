package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Simulators ask the simulated providers what they received, and script their
// faults, over their control listener.
type Simulators struct {
	URL    string // of the control listener
	Client *http.Client

	began       time.Time // earlier messages are not counted, and cost nothing
	before      simTotals
	callsBefore callTotals
	calls       bool // the receiver of triggers is there
}

type simTotals struct {
	IDs        int64 `json:"ids"`
	Deliveries int64 `json:"deliveries"`
	Duplicates int64 `json:"duplicates"`
	Order      struct {
		Reordered int64 `json:"reordered"`
	} `json:"order"`
}

type callTotals struct {
	Taken      int64 `json:"taken"`
	Duplicates int64 `json:"duplicates"`
}

func (l *Simulators) begin(ctx context.Context) (err error) {
	l.began = time.Now().Add(-time.Second) // ids are of the server's clock, calls of the simulators'
	if l.before, err = l.totals(ctx); err != nil {
		return err
	}
	l.callsBefore, err = l.callTotals(ctx)
	l.calls = err == nil
	return nil // older simulators have no receiver of triggers
}

func (l *Simulators) totals(ctx context.Context) (t simTotals, err error) {
	err = l.get(ctx, http.MethodGet, "/ledger/totals", nil, &t)
	return t, err
}

func (l *Simulators) callTotals(ctx context.Context) (t callTotals, err error) {
	err = l.get(ctx, http.MethodGet, "/callbacks/totals", nil, &t)
	return t, err
}

func (l *Simulators) came(ctx context.Context) (came, error) {
	t, err := l.totals(ctx)
	if err != nil {
		return came{}, err
	}
	c := came{ids: t.IDs - l.before.IDs, duplicates: t.Duplicates - l.before.Duplicates, reordered: t.Order.Reordered - l.before.Order.Reordered}
	if l.calls {
		k, err := l.callTotals(ctx)
		if err != nil {
			return c, err
		}
		c.ids += k.Taken - l.callsBefore.Taken
		c.duplicates += k.Duplicates - l.callsBefore.Duplicates
	}
	return c, nil
}

// Callback returns where triggers may lead.
func (l *Simulators) Callback(ctx context.Context) (string, error) {
	var urls struct {
		Callback string `json:"callback"`
	}
	err := l.get(ctx, http.MethodGet, "/urls.json", nil, &urls)
	return urls.Callback, err
}

func (l *Simulators) missing(ctx context.Context, p *promises, most int) (delivered int64, ids []string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	add := func(more ...string) { ids = append(ids, more[:min(len(more), most-len(ids))]...) }
	for rest := p.singles; len(rest) > 0; {
		n := min(len(rest), 100_000)
		var text strings.Builder
		for i := range n {
			text.WriteString(notify.ID{Base: rest[i].base}.String())
			text.WriteByte('\n')
		}
		var out struct {
			Checked int64    `json:"checked"`
			Count   int64    `json:"missing_count"`
			Missing []string `json:"missing"`
		}
		if err := l.get(ctx, http.MethodPost, "/ledger/check", strings.NewReader(text.String()), &out); err != nil {
			return delivered, ids, err
		}
		delivered += out.Checked - out.Count
		add(out.Missing...)
		rest = rest[n:]
	}
	for i := range p.fans {
		b := &p.fans[i]
		var out struct {
			IDs     int64 `json:"ids"`
			Missing []struct{ From, To uint32 }
		}
		if err := l.get(ctx, http.MethodGet, fmt.Sprintf("/ledger/base?base=%s&expected=%d", b.base, b.count), nil, &out); err != nil {
			return delivered, ids, err
		}
		delivered += out.IDs
		if out.IDs >= int64(b.count-b.rejected) {
			continue
		}
		for _, m := range out.Missing {
			for i := m.From; i < m.To && len(ids) < most; i++ {
				add(notify.ID{Base: b.base, Index: i, Fan: true}.String())
			}
		}
	}
	if len(p.others) == 0 {
		return delivered, ids, nil
	}
	taken := map[string]bool{}
	if err := l.eachCall(ctx, func(id string, _ time.Time) { taken[id] = true }); err != nil {
		return delivered, ids, err
	}
	for _, o := range p.others {
		if taken[o.id] {
			delivered++
		} else {
			add(o.id)
		}
	}
	return delivered, ids, nil
}

func (l *Simulators) since() string { return fmt.Sprintf("?since_ms=%d", l.began.UnixMilli()) }

// eachCall yields the calls of triggers that were acted upon, in their order.
func (l *Simulators) eachCall(ctx context.Context, f func(id string, at time.Time)) error {
	return l.lines(ctx, "/callbacks/dump"+l.since(), func(line []byte) error {
		var c struct {
			At    time.Time `json:"at"`
			ID    string    `json:"id"`
			Taken bool      `json:"taken"`
		}
		if err := json.Unmarshal(line, &c); err != nil {
			return err
		}
		if c.Taken {
			f(c.ID, c.At)
		}
		return nil
	})
}

const (
	// dumpMost is up to how many messages since the run's start all are read for their times.
	dumpMost = 2_000_000
	// sampleSize is of how many the times are looked up where there are more.
	sampleSize = 4000
)

func (l *Simulators) times(ctx context.Context, p *promises, f func(*due, time.Time, int64)) (sampled bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.others) > 0 {
		dues := make(map[string]*due, len(p.others))
		for i := range p.others {
			dues[p.others[i].id] = &p.others[i].due
		}
		err := l.eachCall(ctx, func(id string, at time.Time) {
			if d := dues[id]; d != nil {
				delete(dues, id) // its first
				f(d, at, 1)
			}
		})
		if err != nil {
			return false, err
		}
	}
	rest := p.n - int64(len(p.others))
	if rest <= 0 {
		return false, nil
	}
	t, err := l.totals(ctx)
	if err != nil {
		return false, err
	}
	if came := t.Deliveries - l.before.Deliveries; came > dumpMost && rest > sampleSize {
		return true, l.sample(ctx, p, rest, f)
	} else if came > dumpMost { // few of ours among many
		return false, l.sample(ctx, p, rest, f)
	}
	dues := make(map[notify.Base]*due, len(p.singles)+len(p.fans))
	for i := range p.singles {
		dues[p.singles[i].base] = &p.singles[i].due
	}
	for i := range p.fans {
		dues[p.fans[i].base] = &p.fans[i].due
	}
	return false, l.lines(ctx, "/ledger/dump"+l.since(), func(line []byte) error {
		var e struct {
			ID         string    `json:"id"`
			At         time.Time `json:"at"`
			Deliveries int       `json:"deliveries"`
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		id, err := notify.ParseID(e.ID)
		if err != nil || e.Deliveries == 0 {
			return nil // of somebody else, or not delivered
		}
		if d := dues[id.Base]; d != nil {
			f(d, e.At, 1)
		}
		return nil
	})
}

// sample looks up messages at even distances.
func (l *Simulators) sample(ctx context.Context, p *promises, n int64, f func(*due, time.Time, int64)) error {
	look := func(d *due, id notify.ID) error {
		var out []struct {
			At         time.Time `json:"at"`
			Deliveries int       `json:"deliveries"`
		}
		err := l.get(ctx, http.MethodGet, "/ledger?id="+url.QueryEscape(id.String()), nil, &out)
		if err == nil && len(out) > 0 && out[0].Deliveries > 0 {
			f(d, out[0].At, 1)
		}
		if notify.KindOf(err) == notify.KindNotFound {
			err = nil
		}
		return err
	}
	step := max(n/sampleSize, 1)
	for i := int64(0); i < int64(len(p.singles)); i += step {
		if err := look(&p.singles[i].due, notify.ID{Base: p.singles[i].base}); err != nil {
			return err
		}
	}
	next := int64(0)
	for i := range p.fans {
		b := &p.fans[i]
		for ; next < int64(b.count); next += step {
			if err := look(&b.due, notify.ID{Base: b.base, Index: uint32(next), Fan: true}); err != nil {
				return err
			}
		}
		next -= int64(b.count)
	}
	return nil
}

// get makes one call of the control API and decodes its answer.
func (l *Simulators) get(ctx context.Context, method, path string, body io.Reader, out any) error {
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	resp, err := l.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil || out == nil || len(b) == 0 {
		return err
	}
	return json.Unmarshal(b, out)
}

func (l *Simulators) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, l.URL+path, body)
	if err != nil {
		return nil, err
	}
	cl := l.Client
	if cl == nil {
		cl = http.DefaultClient
	}
	resp, err := cl.Do(req)
	if err != nil {
		return nil, notify.Unavailable("simulators", 0, err)
	}
	if resp.StatusCode >= 300 {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // for the message only
		_ = resp.Body.Close()
		kind := notify.KindInternal
		switch resp.StatusCode {
		case http.StatusNotFound:
			kind = notify.KindNotFound
		case http.StatusBadRequest:
			kind = notify.KindInvalid
		}
		return nil, &notify.Error{Kind: kind, Code: "simulators", Msg: fmt.Sprintf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))}
	}
	return resp, nil
}

// lines reads NDJSON.
func (l *Simulators) lines(ctx context.Context, path string, f func([]byte) error) error {
	resp, err := l.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	in := bufio.NewScanner(resp.Body)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if err := f(in.Bytes()); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return in.Err()
}
