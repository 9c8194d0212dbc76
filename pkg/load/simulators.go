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

// Simulators reads what simulated providers received, and controls their faults. It uses the
// control listener of the simulators.
type Simulators struct {
	URL    string // URL of the control listener
	Client *http.Client

	began       time.Time            // trigger calls before this time are not read
	before      simulator.Summary    // totals at the start of the run; later counts subtract them
	callsBefore simulator.CallTotals // totals of trigger calls at the start of the run
	hasCalls    bool                 // true: the simulators have a receiver of trigger calls
	cursor      int64                // position of the first arrival that has not been read
}

func (l *Simulators) markStart(ctx context.Context) (err error) {
	// The times of trigger calls come from the simulators' clock, which may be up to a second slow.
	// So begin a second earlier.
	l.began = time.Now().Add(-time.Second)
	if l.before, err = l.totals(ctx, true); err != nil {
		return err
	}
	if _, err = l.readArrivals(ctx, "end"); err != nil {
		return err
	}
	l.callsBefore, err = l.callTotals(ctx)
	l.hasCalls = err == nil
	return nil // an error means that the simulators have no receiver of triggers, so there are no calls
}

// totals returns what the simulators counted. If settle is true, the simulators first finish the
// comparison of the order of messages. totals returns an error if the simulators could not write
// their ledger completely, because the counts then prove nothing.
func (l *Simulators) totals(ctx context.Context, settle bool) (t simulator.Summary, err error) {
	err = l.Call(ctx, http.MethodGet, fmt.Sprintf("/ledger/totals?settle=%t", settle), nil, &t)
	if failed := cmp.Or(t.DiskError, t.FileError); err == nil && failed != "" {
		err = &notify.Error{Kind: notify.KindInternal, Code: "ledger_incomplete", Msg: "the simulators' ledger could not write all its data, so its counts prove nothing: " + failed}
	}
	return t, err
}

func (l *Simulators) callTotals(ctx context.Context) (t simulator.CallTotals, err error) {
	err = l.Call(ctx, http.MethodGet, "/callbacks/totals", nil, &t)
	return t, err
}

func (l *Simulators) countArrivals(ctx context.Context, settle bool) (arrivalCounts, error) {
	t, err := l.totals(ctx, settle)
	if err != nil {
		return arrivalCounts{}, err
	}
	c := arrivalCounts{ids: int64(t.IDs - l.before.IDs), duplicates: int64(t.Duplicates - l.before.Duplicates), reordered: int64(t.Order.Reordered - l.before.Order.Reordered)}
	if l.hasCalls {
		k, err := l.callTotals(ctx)
		if err != nil {
			return c, err
		}
		c.ids += k.Taken - l.callsBefore.Taken
		c.duplicates += k.Duplicates - l.callsBefore.Duplicates
	}
	return c, nil
}

// readArrivals reads the arrivals after a position, given by the parameter since. Then it sets
// l.cursor to the position after the last of them, so that the next call reads only newer arrivals.
func (l *Simulators) readArrivals(ctx context.Context, since string) ([]simulator.Arrival, error) {
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

// Callback returns the URL that triggers can call.
func (l *Simulators) Callback(ctx context.Context) (string, error) {
	var urls struct {
		Callback string `json:"callback"`
	}
	err := l.Call(ctx, http.MethodGet, "/urls.json", nil, &urls)
	return urls.Callback, err
}

func (l *Simulators) sinceQuery() string { return fmt.Sprintf("?since_ms=%d", l.began.UnixMilli()) }

// eachCall calls the function f with each trigger call that the receiver accepted, in order.
func (l *Simulators) eachCall(ctx context.Context, f func(id string, at time.Time)) error {
	return l.eachLine(ctx, "/callbacks/dump"+l.sinceQuery(), func(line []byte) error {
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

// Call makes one call of the control API. The parameter in is the body of the call: an io.Reader is
// sent unchanged, and any other value as JSON. Call decodes the answer into the variable to which
// out points. If in is nil, the call has no body; if out is nil, the answer is not decoded. The
// kind of the error is notify.KindUnavailable if there is no answer, KindInvalid for an answer 400,
// KindNotFound for 404, and KindInternal otherwise.
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

// callTimeout is the timeout of one call of the control API. Some answers take seconds if the
// ledger holds a billion messages.
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
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // used only for the message of the error
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

// eachLine calls the function f with each line of an NDJSON answer.
func (l *Simulators) eachLine(ctx context.Context, path string, f func([]byte) error) error {
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
