package load

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// Simulators ask the simulated providers what they received, and script their
// faults, over their control listener.
type Simulators struct {
	URL    string // of the control listener
	Client *http.Client

	began       time.Time // earlier messages are not counted, and cost nothing
	before      simulator.Summary
	callsBefore simulator.CallTotals
	calls       bool // the receiver of triggers is there
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

func (l *Simulators) totals(ctx context.Context) (t simulator.Summary, err error) {
	err = l.Call(ctx, http.MethodGet, "/ledger/totals", nil, &t)
	return t, err
}

func (l *Simulators) callTotals(ctx context.Context) (t simulator.CallTotals, err error) {
	err = l.Call(ctx, http.MethodGet, "/callbacks/totals", nil, &t)
	return t, err
}

func (l *Simulators) came(ctx context.Context) (came, error) {
	t, err := l.totals(ctx)
	if err != nil {
		return came{}, err
	}
	c := came{ids: int64(t.IDs - l.before.IDs), duplicates: int64(t.Duplicates - l.before.Duplicates), reordered: int64(t.Order.Reordered - l.before.Order.Reordered)}
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
	err := l.Call(ctx, http.MethodGet, "/urls.json", nil, &urls)
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
		if err := l.Call(ctx, http.MethodPost, "/ledger/check", strings.NewReader(text.String()), &out); err != nil {
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
		if err := l.Call(ctx, http.MethodGet, fmt.Sprintf("/ledger/base?base=%s&expected=%d", b.base, b.count), nil, &out); err != nil {
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
		var c simulator.Call
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
	if came := int64(t.Deliveries - l.before.Deliveries); came > dumpMost && rest > sampleSize {
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
		var e simulator.Delivery
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
		var out []simulator.Delivery
		err := l.Call(ctx, http.MethodGet, "/ledger?id="+url.QueryEscape(id.String()), nil, &out)
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

// Call makes one call of the control API. It sends in as JSON, or as it is if it is an
// io.Reader, and decodes the answer to out; both may be nil.
func (l *Simulators) Call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader = http.NoBody
	if r, ok := in.(io.Reader); ok {
		body = r
	} else if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	resp, err := l.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return &notify.Error{Kind: notify.KindUnavailable, Code: codeNoAnswer, Msg: "the simulators' answer broke off", Err: err}
	}
	if out == nil || len(b) == 0 {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return &notify.Error{Kind: notify.KindInternal, Code: "bad_answer", Msg: "the simulators' answer is not the JSON expected", Err: err}
	}
	return nil
}

const codeNoAnswer = "no_answer"

func (l *Simulators) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, l.URL+path, body)
	if err != nil {
		return nil, notify.Invalid("simulators", "simulators", err.Error())
	}
	resp, err := cmp.Or(l.Client, http.DefaultClient).Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		return nil, &notify.Error{Kind: notify.KindUnavailable, Code: codeNoAnswer, Msg: "the simulators did not answer", Err: err}
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	var e struct{ Code, Field, Message string }
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // for the message only
	if json.Unmarshal(b, &e) != nil || e.Message == "" {
		e.Code, e.Message = "simulators", fmt.Sprintf("%s %s: the simulators answered %s", method, path, resp.Status)
	}
	kind := notify.KindInternal
	switch resp.StatusCode {
	case http.StatusNotFound:
		kind = notify.KindNotFound
	case http.StatusBadRequest:
		kind = notify.KindInvalid
	}
	return nil, &notify.Error{Kind: kind, Code: e.Code, Field: e.Field, Msg: e.Message}
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
