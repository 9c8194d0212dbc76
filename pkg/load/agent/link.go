package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// link is the controller's connection to one agent. The mutex of the fleet guards the fields agent,
// id, ready and err.
type link struct {
	fleet *Fleet
	index int
	base  string        // URL
	kick  chan struct{} // a value in this channel makes the method sendOrders send the orders at once

	agent load.Agent
	id    string // id of the run at the agent; empty: not known yet
	ready int    // phase that the agent has begun or waits to begin; -1: none
	err   error  // why the agent is lost
}

// ended reports whether the agent will send no more events.
func (l *link) ended() bool {
	return l.agent.State == load.AgentDone || l.agent.State == load.AgentLost
}

// lose marks the agent as lost, unless it has already ended.
func (l *link) lose(why error) {
	l.fleet.update(func() {
		if l.ended() {
			return
		}
		l.err = why
		l.agent.State, l.agent.LostBecause = load.AgentLost, why.Error()
		if began := l.fleet.began; !began.IsZero() {
			l.agent.LostAt = max(l.fleet.opt.now().Sub(began), 0)
		}
	})
}

// roundTrips is how many times compareClocks asks an agent for its time. compareClocks uses the
// answer with the shortest round trip, because that answer has the smallest error.
const roundTrips = 8

// compareClocks asks the agent for its time and computes how far the agent's clock differs from the
// controller's clock. It assumes that the agent answered in the middle of the round trip. So the
// error is at most half of the round trip.
func (l *link) compareClocks(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	best := time.Duration(-1)
	for range roundTrips {
		asked := time.Now()
		sent := l.fleet.opt.now()
		var about About
		if err := l.get(ctx, &about); err != nil {
			return err
		}
		trip := time.Since(asked)
		if about.Protocol != Protocol {
			return &notify.Error{Kind: notify.KindInvalid, Code: "agent_protocol", Field: "protocol", Msg: fmt.Sprintf("is version %d (notifyctl %s), but this notifyctl uses version %d: use the same release on all machines", about.Protocol, about.Version, Protocol)}
		}
		if best >= 0 && trip >= best {
			continue
		}
		best = trip
		l.agent.Host, l.agent.Version = about.Host, about.Version
		l.agent.Offset, l.agent.Uncertainty = time.Unix(0, about.Now).Sub(sent.Add(trip/2)), trip/2
	}
	switch a := &l.agent; {
	case a.Uncertainty > uncertaintyMost:
		return notify.Invalid("agent_clock", "clock", fmt.Sprintf("cannot be compared with this machine's clock: the shortest of %d round trips took %v, but may take at most %v", roundTrips, best, 2*uncertaintyMost))
	case a.Offset.Abs() > offsetMost:
		return notify.Invalid("agent_clock", "clock", fmt.Sprintf("differs from this machine's clock by %v, but may differ by at most %v; synchronize the clocks", a.Offset.Round(time.Millisecond), offsetMost))
	}
	return nil
}

func (l *link) get(ctx context.Context, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.base+agentPath, nil)
	if err != nil {
		return err
	}
	resp, err := l.fleet.client.Do(req)
	if err != nil {
		return away(err)
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return refusalError(resp, dec)
	}
	if err := dec.Decode(into); err != nil {
		return notify.Invalid("bad_answer", "", "it is not a load agent: its answer is not the JSON expected")
	}
	return nil
}

func away(err error) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: "agent_away", Msg: "cannot be reached; start it with notifyctl load agent", Err: err}
}

// refusalError returns the error that is in an agent's answer. If the answer contains no error,
// it returns an error with the code bad_answer.
func refusalError(resp *http.Response, dec *json.Decoder) error {
	var e Event
	if dec.Decode(&e) != nil || e.Failed == nil {
		e.Failed = &api.Problem{Status: resp.StatusCode, Code: "bad_answer", Detail: "it is not a load agent: it answered " + resp.Status}
	}
	e.Failed.Status = resp.StatusCode
	return e.Failed.Err(0)
}

// request builds a request with a JSON body. It adds the bearer token, if token is not empty.
func (l *link) request(ctx context.Context, method, path, token string, body any) (*http.Request, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, l.base+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", api.TypeJSON)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req, nil
}

func (l *link) token(ctx context.Context) (string, error) {
	if l.fleet.opt.Token == nil {
		return "", nil
	}
	return l.fleet.opt.Token(ctx)
}

// follow starts the run at the agent, adds the agent's frames to the run of the controller, and
// records the agent's state. It returns after the last event, or when the agent is lost.
func (l *link) follow(ctx context.Context, feed func(int, *load.Frame) error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The first event may take twice the time silence, because the agent may first ask its server
	// whether the token is valid.
	watch := time.AfterFunc(2*silence, func() { cancel(fmt.Errorf("it was silent for %v", silence)) })
	defer watch.Stop()
	err := l.readEvents(ctx, func(e *Event) error {
		watch.Reset(silence)
		switch {
		case e.Failed != nil:
			return e.Failed.Err(0)
		case e.Frame != nil:
			return feed(l.index, e.Frame)
		}
		l.fleet.update(func() {
			switch {
			case e.Run != "":
				l.id = e.Run
			case e.Ready != nil:
				l.ready = *e.Ready
			case e.Done:
				l.agent.State = load.AgentDone
			}
		})
		return nil
	})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	l.lose(err)
}

// readEvents starts the run at the agent and calls the function handle with each event. When
// the agent's answer ends, readEvents returns an error that says why.
func (l *link) readEvents(ctx context.Context, handle func(*Event) error) error {
	job := l.fleet.opt.Job
	job.Segment = load.Segment{I: l.index + 1, N: len(l.fleet.links)}
	token, err := l.token(ctx)
	if err != nil {
		return err
	}
	job.Aim.Token = token
	req, err := l.request(ctx, http.MethodPost, runsPath, token, &job)
	if err != nil {
		return err
	}
	resp, err := l.fleet.client.Do(req)
	if err != nil {
		return away(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refusalError(resp, json.NewDecoder(resp.Body))
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxEvent)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return notify.Invalid("bad_frame", "", "an event is not the JSON expected: "+err.Error())
		}
		if err := handle(&e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the connection broke: %w", err)
	}
	return errors.New("the connection ended: the agent died or was stopped")
}

// sendOrders sends the current orders to the agent every second, and at once when they change.
func (l *link) sendOrders(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-l.kick:
		}
		l.fleet.mu.Lock()
		o, id, ended := l.fleet.orders, l.id, l.ended()
		o.At += int64(l.agent.Offset)
		l.fleet.mu.Unlock()
		if ended {
			return
		}
		if id != "" {
			// If the call fails, the next beat sends the orders again. If no orders arrive, the agent
			// stops.
			_ = l.send(ctx, runsPath+"/"+id, &o)
		}
	}
}

func (l *link) send(ctx context.Context, path string, o *Orders) (err error) {
	ctx, stop := context.WithTimeout(ctx, beat)
	defer stop()
	if o.Token, err = l.token(ctx); err != nil {
		return err
	}
	req, err := l.request(ctx, http.MethodPut, path, "", o)
	if err != nil {
		return err
	}
	resp, err := l.fleet.client.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
