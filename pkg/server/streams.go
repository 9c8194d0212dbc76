package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// failedFeed returns the caller's failures after a position. With the query parameter "wait" it
// waits for the next failure if there is none yet. So a service can follow the feed.
func failedFeed(x *exchange) (api.FailedPage, error) {
	page := api.FailedPage{Items: []api.DeadLetter{}, After: x.query.unsigned("after")}
	wait, _ := parseSpan(x.query.text("wait"))
	if wait > 0 {
		x.deadlines(time.Time{}, time.Now().Add(wait+x.srv.cfg.WriteTimeout))
	}
	ds, err := waitFeed(x, page.After, wait)
	for i := range ds {
		page.After = ds[i].Seq
		if ds[i].Channel != deadletter.ChannelTrigger { // triggers show failures in their status, not in the feed
			page.Items = append(page.Items, deadLetter(&ds[i]))
		}
	}
	return page, err
}

// waitFeed polls until the feed has an entry, the time maxWait has passed, or the server drains.
func waitFeed(x *exchange, after uint64, maxWait time.Duration) ([]engine.DeadLetter, error) {
	ctx := x.r.Context()
	over := time.NewTimer(maxWait)
	defer over.Stop()
	poll := time.NewTicker(x.srv.cfg.FeedPoll)
	defer poll.Stop()
	for {
		ds, err := x.srv.deps.DeadLetters.Feed(ctx, x.id.Caller, after, x.pageSize())
		if err != nil || len(ds) > 0 || maxWait == 0 {
			return ds, err
		}
		select {
		case <-poll.C:
		case <-over.C:
			return nil, nil
		case <-x.srv.draining:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tailOutcomes streams outcomes, one JSON object per line, until the client disconnects or the
// server drains.
func tailOutcomes(x *exchange) error {
	f, err := tailFilter(x)
	if err != nil {
		return err
	}
	if x.r.Method == http.MethodHead {
		x.write(http.StatusOK, nil)
		return nil
	}
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	events, missed := x.srv.deps.Tail.Subscribe(ctx, f)
	h := x.w.Header()
	h["Content-Type"], h["Cache-Control"] = typeNDJSON, noStore
	x.w.WriteHeader(http.StatusOK)
	x.status = http.StatusOK
	return streamEvents(x, events, missed)
}

// tailFilter returns the filter of the request. It selects the caller's own outcomes, unless an
// operator names another caller, or all callers ("*").
func tailFilter(x *exchange) (api.TailFilter, error) {
	f := api.TailFilter{Caller: x.id.Caller, Channel: x.query.text("channel"), Category: x.query.text("category"), Status: x.query.text("status")}
	switch name := x.query.text("caller"); name {
	case "":
	case "*":
		f.Caller = ""
	default:
		f.Caller = name
	}
	if _, ok := notify.ParseChannel(f.Channel); f.Channel != "" && !ok {
		return f, notify.Invalid("unknown_channel", "channel", "must be push, sms or email")
	}
	if _, ok := notify.ParseCategory(f.Category); f.Category != "" && !ok {
		return f, notify.Invalid("unknown_category", "category", "must be otp, alert, transactional, marketing or digest")
	}
	if _, ok := notify.ParseState(f.Status); f.Status != "" && !ok {
		return f, notify.Invalid("bad_state", "status", "is not the name of a state, such as DELIVERED or FAILED")
	}
	return f, nil
}

// withoutProcesses removes the names and addresses of processes from an event, because only
// operators may see them. A caller can still see that outcomes are missing.
func withoutProcesses(e *api.Event) {
	e.Processes = nil
	if e.Process != "" {
		e.Process = ""
		if e.Type == api.EventGap {
			e.Process = "another process"
		}
	}
	if len(e.Missing) > 0 {
		e.Missing = []api.Process{{Name: "some processes", State: api.ProcessUnknown, Note: "they do not answer"}}
	}
}

// streamEvents writes events until the channel is closed, the server drains, or the client
// disconnects or does not read within WriteTimeout. It flushes when no further event waits in the
// channel. It always returns nil, because the answer has begun.
func streamEvents(x *exchange, events <-chan api.Event, missed func() int64) error {
	rc := http.NewResponseController(x.w)
	beat := time.NewTicker(x.srv.cfg.Heartbeat)
	defer beat.Stop()
	told, operator := int64(0), x.operator()
	line := func(e api.Event) error {
		if !operator {
			withoutProcesses(&e)
		}
		x.deadlines(time.Time{}, time.Now().Add(x.srv.cfg.WriteTimeout))
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		n, err := x.w.Write(append(b, '\n'))
		x.bytesOut += int64(n)
		return err
	}
	now := func() time.Time { return x.srv.deps.Now().UTC().Truncate(time.Millisecond) }
	if line(api.Event{Type: api.EventHeartbeat, At: now()}) != nil || rc.Flush() != nil {
		return nil // the client has disconnected
	}
	for {
		var err error
		select {
		case e, ok := <-events:
			if !ok {
				return nil
			}
			err = line(e)
		case <-beat.C:
			err = line(api.Event{Type: api.EventHeartbeat, At: now()})
		case <-x.srv.draining:
			return nil
		case <-x.r.Context().Done():
			return nil
		}
		if n := missed(); err == nil && n > told {
			err = line(api.Event{Type: api.EventGap, At: now(), Dropped: n - told})
			told = n
		}
		if err == nil && len(events) == 0 {
			err = rc.Flush()
		}
		if err != nil {
			return nil // the client has disconnected or does not read
		}
	}
}

// Snapshot contains all data that the server stores, at one point in time.
type Snapshot interface {
	// Write writes the snapshot to w. It may fail after it has written a part of the snapshot.
	Write(ctx context.Context, w io.Writer) error
	Close() error
}

// streamBackup streams a backup. The manifest is sent first. So if the backup is interrupted, a
// reader notices that files are missing.
func streamBackup(x *exchange) error {
	if x.srv.deps.Backup == nil {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "backup_unavailable", Msg: "this server stores nothing itself; back up its engines"}
	}
	if x.r.Method == http.MethodHead {
		x.write(http.StatusOK, nil)
		return nil
	}
	if err := x.recordAct(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	draining := x.srv.draining // a copy, because x is reused after the answer
	go func() {                // cancels the backup when the server drains; this goroutine ends at the latest when ctx ends
		select {
		case <-draining:
			cancel()
		case <-ctx.Done():
		}
	}()
	snap, err := x.srv.deps.Backup(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err := snap.Close(); err != nil {
			x.srv.deps.Log.Warn("the files of a backup snapshot could not be removed", "err", err)
		}
	}()
	h := x.w.Header()
	h["Content-Type"], h["Cache-Control"] = []string{api.TypeBackup}, noStore
	x.w.WriteHeader(http.StatusOK)
	x.status = http.StatusOK
	if err := snap.Write(ctx, &paced{x}); err != nil {
		x.srv.deps.Log.Warn("the backup was interrupted", "err", err, "bytes", x.bytesOut)
		panic(http.ErrAbortHandler) // closes the connection: after a normal end the backup would seem complete
	}
	return nil
}

// paced writes the body of the answer, with a new deadline for each write. So a client that does
// not read is disconnected.
type paced struct{ x *exchange }

func (p *paced) Write(b []byte) (int, error) {
	p.x.deadlines(time.Time{}, time.Now().Add(p.x.srv.cfg.WriteTimeout))
	n, err := p.x.w.Write(b)
	p.x.bytesOut += int64(n)
	return n, err
}
