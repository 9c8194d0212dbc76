package archive

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
)

// archiveLetters archives the dead letters that were indexed after the last archived dead letter of
// their caller.
func (a *Archiver) archiveLetters(ctx context.Context, now time.Time) error {
	to := maps.Clone(a.st.Letters)
	return a.writeFile(ctx, DeadLetters, now, func(add func(any) error) (*pendingFile, int, error) {
		err := a.eachLetter(ctx, to, func(d *engine.DeadLetter) error { return add(letterLine{deadletter.LetterID(d), d}) })
		return &pendingFile{Letters: to, History: a.st.History}, 0, err
	})
}

// eachLetter calls the function fn with the dead letters of each caller that have a higher sequence
// number than last[caller]. After each call it sets last[caller] to the sequence number of that
// dead letter.
func (a *Archiver) eachLetter(ctx context.Context, last map[string]uint64, fn func(*engine.DeadLetter) error) error {
	for _, caller := range a.cfg.Callers() {
		for {
			ds, err := a.cfg.Letters.Feed(ctx, caller, last[caller], 1000)
			if err != nil {
				return err
			}
			if len(ds) == 0 {
				break
			}
			for i := range ds {
				if err := fn(&ds[i]); err != nil {
					return err
				}
				last[caller] = ds[i].Seq
			}
		}
	}
	return nil
}

// letterLine is a line of a dead-letters file. The dead letter of a trigger has the id of the
// trigger.
type letterLine struct {
	ID string `json:"id"`
	*engine.DeadLetter
}

// Outcome is one line of a file of outcomes.
type Outcome struct {
	ID       string    `json:"notification_id"`
	Caller   string    `json:"caller"`
	Campaign string    `json:"campaign,omitempty"`
	Channel  string    `json:"channel"`
	Category string    `json:"category"`
	User     string    `json:"user_id"`
	Template string    `json:"template,omitempty"`
	Status   string    `json:"status"`
	Code     string    `json:"code,omitempty"`
	Epoch    uint16    `json:"epoch,omitempty"`
	Attempts int       `json:"attempts"`
	Accepted time.Time `json:"accepted_at"`
	Updated  time.Time `json:"updated_at,omitzero"`
}

// archiveOutcomes archives the outcomes of the records that are older than Config.After and that
// earlier runs have not archived.
func (a *Archiver) archiveOutcomes(ctx context.Context, now time.Time) error {
	from := parsePositions(a.st.History)
	to, err := a.cfg.History.Settled(ctx, now.Add(-a.cfg.After).UnixMilli())
	if err != nil {
		return err
	}
	for p, at := range from { // after a merge of segments, Settled may return a lower offset than before
		to[p] = max(to[p], at)
	}
	return a.writeFile(ctx, Outcomes, now, func(add func(any) error) (*pendingFile, int, error) {
		o := outcomeReader{status: a.cfg.Status, addLine: add}
		damaged, err := a.cfg.History.Range(ctx, from, to, func(env *notify.Envelope) error { return o.add(ctx, env) })
		if err == nil {
			err = o.flush(ctx)
		}
		if err != nil {
			return nil, 0, err
		}
		names := make(map[string]int64, len(to))
		for p, at := range to {
			names[p.String()] = at
		}
		return &pendingFile{Letters: a.st.Letters, History: names}, damaged, nil
	})
}

// Limits of the chunks that an outcomeReader collects. Reading a chunk's rows from a server takes
// about a millisecond.
const (
	chunksAtOnce = 64
	bytesAtOnce  = 8 << 20 // bytes of receivers
)

// outcomeReader reads the outcomes of several chunks in parallel and adds their lines in the
// order of the chunks.
type outcomeReader struct {
	status  engine.Status
	addLine func(any) error
	envs    []*notify.Envelope
	bytes   int
}

// add collects a chunk and calls flush when enough chunks are collected.
func (o *outcomeReader) add(ctx context.Context, env *notify.Envelope) error {
	o.envs, o.bytes = append(o.envs, env), o.bytes+len(env.Receivers)
	if len(o.envs) < chunksAtOnce && o.bytes < bytesAtOnce {
		return nil
	}
	return o.flush(ctx)
}

// flush reads the outcomes of the collected chunks and adds their lines.
func (o *outcomeReader) flush(ctx context.Context) error {
	rows := make([][]notify.Row, len(o.envs))
	reads, ctx := errgroup.WithContext(ctx)
	for i, env := range o.envs {
		reads.Go(func() (err error) {
			rows[i], err = o.status.Chunk(ctx, env.Chunk)
			return err
		})
	}
	if err := reads.Wait(); err != nil {
		return err
	}
	for i, env := range o.envs {
		if err := addOutcomes(env, rows[i], o.addLine); err != nil {
			return err
		}
	}
	clear(o.envs)
	o.envs, o.bytes = o.envs[:0], 0
	return nil
}

// addOutcomes adds a line for each receiver of a chunk.
func addOutcomes(env *notify.Envelope, rows []notify.Row, add func(any) error) error {
	rd, r := notify.ReadReceivers(env.Receivers), notify.Receiver{}
	for pos := uint32(0); rd.Next(&r); pos++ {
		out := notify.Fold(rows, r.Index, pos)
		line := Outcome{
			ID: notify.ID{Base: env.Chunk.Base, Index: r.Index, FanOut: env.FanOut}.String(), Caller: env.Caller, Campaign: env.Campaign,
			Channel: env.Channel.String(), Category: env.Category.String(), User: string(r.User), Template: env.Content.Template,
			Status: out.State.String(), Code: out.Code, Epoch: out.Epoch, Attempts: int(out.Attempt) + 1,
			Accepted: time.UnixMilli(env.Accepted).UTC(),
		}
		if out.Updated != 0 {
			line.Updated = time.UnixMilli(out.Updated).UTC()
		}
		if err := add(&line); err != nil {
			return err
		}
	}
	return rd.Err()
}

// parsePositions parses the keys and offsets of archiveState.History.
func parsePositions(names map[string]int64) map[history.Part]int64 {
	out := make(map[history.Part]int64, len(names))
	for name, at := range names {
		i := strings.LastIndexByte(name, '/')
		n, err := strconv.ParseInt(name[i+1:], 10, 32)
		if i > 0 && err == nil { // this package does not write names in another form
			out[history.Part{Topic: name[:i], Partition: int32(n)}] = at
		}
	}
	return out
}
