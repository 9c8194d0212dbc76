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
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// Simulators ask simulated providers what they received, and script their faults, over
// their control listener.
type Simulators struct {
	URL    string // of the control listener
	Client *http.Client

	began       time.Time // earlier calls of triggers are not counted, and cost nothing
	before      simulator.Summary
	callsBefore simulator.CallTotals
	calls       bool  // the receiver of triggers is there
	cursor      int64 // of the arrivals that were not read yet
}

func (l *Simulators) begin(ctx context.Context) (err error) {
	l.began = time.Now().Add(-time.Second) // calls are of the simulators' clock
	if l.before, err = l.totals(ctx, true); err != nil {
		return err
	}
	if _, err = l.arrivals(ctx, "end"); err != nil {
		return err
	}
	l.callsBefore, err = l.callTotals(ctx)
	l.calls = err == nil
	return nil // without a receiver of triggers there are none
}

// totals counts what was received; settle compares first the order of what waits.
func (l *Simulators) totals(ctx context.Context, settle bool) (t simulator.Summary, err error) {
	err = l.Call(ctx, http.MethodGet, fmt.Sprintf("/ledger/totals?settle=%t", settle), nil, &t)
	if failed := cmp.Or(t.DiskError, t.FileError); err == nil && failed != "" {
		err = &notify.Error{Kind: notify.KindInternal, Code: "ledger_incomplete", Msg: "the simulators' ledger could not write, so its counts prove nothing: " + failed}
	}
	return t, err
}

func (l *Simulators) callTotals(ctx context.Context) (t simulator.CallTotals, err error) {
	err = l.Call(ctx, http.MethodGet, "/callbacks/totals", nil, &t)
	return t, err
}

func (l *Simulators) came(ctx context.Context, settle bool) (came, error) {
	t, err := l.totals(ctx, settle)
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

// arrivals reads those from a cursor on, and moves the cursor behind them.
func (l *Simulators) arrivals(ctx context.Context, since string) ([]simulator.Arrival, error) {
	ctx, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	resp, err := l.do(ctx, http.MethodGet, "/ledger/arrivals?since="+since, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, brokeOff(err)
	}
	list, err := simulator.ParseArrivals(b)
	if err == nil {
		l.cursor, err = strconv.ParseInt(resp.Header.Get(simulator.CursorHeader), 10, 64)
	}
	if err != nil {
		return nil, badAnswer(err)
	}
	return list, nil
}

// Callback returns where triggers may lead.
func (l *Simulators) Callback(ctx context.Context) (string, error) {
	var urls struct {
		Callback string `json:"callback"`
	}
	err := l.Call(ctx, http.MethodGet, "/urls.json", nil, &urls)
	return urls.Callback, err
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
	ctx, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	resp, err := l.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return brokeOff(err)
	}
	if out == nil || len(b) == 0 {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return badAnswer(err)
	}
	return nil
}

const codeNoAnswer = "no_answer"

// callTimeout is of one call of the control API. A ledger that holds a billion answers
// some of them in seconds.
const callTimeout = 2 * time.Minute

func brokeOff(err error) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: codeNoAnswer, Msg: "the simulators' answer broke off", Err: err}
}

func badAnswer(err error) error {
	return &notify.Error{Kind: notify.KindInternal, Code: "bad_answer", Msg: "the simulators' answer is not what was expected", Err: err}
}

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
