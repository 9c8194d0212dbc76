package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// causeReplay is the Cause of a replayed envelope.
const causeReplay = "replay"

// line is a line of a job's report: an entry that was not acted on, and why.
type line struct {
	ID     string `json:"id"`
	Epoch  uint16 `json:"epoch"`
	Caller string `json:"caller,omitempty"`
	Result string `json:"result"` // skipped, exhausted, failed
	Why    string `json:"why"`
}

// batch acts on entries, and returns their lines. Repeated, also by another
// process after a crash, it does the same again: what it had marked is its own,
// and is published under the same keys.
func (r *runner) batch(ctx context.Context, at int, es []entry) ([]engine.JobEntry, error) {
	letters, err := letters(ctx, r.m, es)
	if err != nil {
		return nil, err
	}
	b := &batch{r: r, at: at, es: es, letters: letters, why: make([]string, len(es))}
	switch r.spec.Spec.Kind {
	case KindExport:
		return b.export()
	case KindDiscard:
		err = b.discard(ctx)
	default:
		err = b.replay(ctx)
	}
	if err != nil {
		return nil, err
	}
	return b.lines()
}

// batch is what is known of some entries.
type batch struct {
	r       *runner
	at      int
	es      []entry
	letters []*engine.DeadLetter
	why     []string // an entry is not acted on; "": it is
}

func (b *batch) lines() (out []engine.JobEntry, err error) {
	res := &b.r.res
	for i, why := range b.why {
		if why == "" {
			res.Done++
			continue
		}
		l := line{Result: "skipped", Why: why}
		switch {
		case why == SkipExhausted:
			l.Result = "exhausted"
			res.Exhaust++
		case strings.HasPrefix(why, "error: "):
			l.Result, l.Why = "failed", strings.TrimPrefix(why, "error: ")
			res.Failed++
		default:
			res.Skipped[why]++
		}
		if d := b.letters[i]; d != nil {
			l.ID, l.Epoch, l.Caller = LetterID(d), d.Epoch, d.Caller
		}
		doc, err := json.Marshal(l)
		if err != nil {
			return nil, err
		}
		out = append(out, engine.JobEntry{At: uint64(b.at+i) + 1, Doc: doc})
	}
	return out, nil
}

func (b *batch) export() (out []engine.JobEntry, err error) {
	for i, d := range b.letters {
		if d == nil {
			b.r.res.Skipped[SkipGone]++
			continue
		}
		doc, err := json.Marshal(exported{LetterID(d), d})
		if err != nil {
			return nil, err
		}
		b.r.res.Done++
		out = append(out, engine.JobEntry{At: uint64(b.at+i) + 1, Doc: doc})
	}
	return out, nil
}

type exported struct {
	Letter string `json:"letter_id"`
	*engine.DeadLetter
}

// ours reports whether a letter was moved by this job; forced ones carry the
// epoch they were sent under behind the job's id.
func ours(d *engine.DeadLetter, job string) bool {
	return d.Job == job || strings.HasPrefix(d.Job, job+"@")
}

// state is why a letter's own state forbids acting on it; mine: this job has
// marked it before.
func (b *batch) state(d *engine.DeadLetter) (why string, mine bool) {
	switch {
	case d == nil:
		return SkipGone, false
	case ours(d, b.r.j.ID):
		return "", true
	case d.State == engine.LetterDiscarded:
		return SkipDiscarded, false
	case d.State == engine.LetterReplayed:
		return SkipReplayed, false
	}
	return "", false
}

func (b *batch) discard(ctx context.Context) error {
	return b.mark(ctx, engine.LetterDiscarded, func(i int) (bool, error) {
		why, mine := b.state(b.letters[i])
		b.why[i] = why
		return why == "" && !mine, nil
	}, nil)
}

// mark moves the letters that want says to a state, by this job.
func (b *batch) mark(ctx context.Context, to string, want func(int) (bool, error), epoch func(int) uint16) error {
	var moves []engine.LetterMove
	var of []int
	for i, d := range b.letters {
		ok, err := want(i)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		by := b.r.j.ID
		if epoch != nil && epoch(i) != d.Epoch+1 {
			by += "@" + strconv.Itoa(int(epoch(i)))
		}
		moves = append(moves, engine.LetterMove{ID: d.ID, Epoch: d.Epoch, From: d.State, FromJob: d.Job, To: to, Job: by})
		of = append(of, i)
	}
	moved, err := b.r.m.cfg.Letters.Move(ctx, moves)
	if err != nil {
		return err
	}
	for k, ok := range moved {
		if !ok { // between the look and now somebody else acted on it
			b.why[of[k]] = SkipReplayed
		}
	}
	return nil
}

// replay sends letters again: first they are marked, in the ledger; then their
// envelopes are published, under keys that follow from the letter alone; behind
// that the cursor moves. A crash in between repeats the publishing, which the
// worker takes for the copy it is.
func (b *batch) replay(ctx context.Context) error {
	if err := b.circuits(ctx); err != nil {
		return err
	}
	spec := &b.r.spec.Spec
	now := time.Now().UnixMilli()
	recs := make([]*log.Record, len(b.es))
	obs := make([]observed, len(b.es))
	chunks := map[notify.Chunk][]notify.Row{}
	var last engine.Found // letters of one chunk come together
	err := b.mark(ctx, engine.LetterReplayed, func(i int) (bool, error) {
		d := b.letters[i]
		why, mine := b.state(d)
		forced := why == SkipReplayed && spec.ForceResend
		switch {
		case b.es[i].collapsed:
			why = SkipCollapsed
		case why != "" && !forced:
		case d.Channel == ChannelTrigger && b.r.m.cfg.Triggers == nil:
			why = SkipTrigger
		case mine:
			why = ""
		default:
			why = before(spec, d, now)
		}
		if why != "" {
			b.why[i] = why
			return false, nil
		}
		if d.Channel == ChannelTrigger {
			return !mine, nil
		}
		found, err := b.find(ctx, &last, d.ID)
		if err != nil {
			switch notify.KindOf(err) {
			case notify.KindNotFound, notify.KindGone:
				b.why[i] = SkipContent
				return false, nil
			case notify.KindUnavailable, notify.KindThrottled:
				return false, err
			}
			b.why[i] = "error: " + err.Error()
			return false, nil
		}
		chunk := found.Envelope.Chunk
		rows, ok := chunks[chunk]
		if !ok {
			if rows, err = b.r.m.cfg.Status.Chunk(ctx, chunk); err != nil {
				return false, err
			}
			chunks[chunk] = rows
		}
		var epoch uint16
		if mine {
			epoch = markedEpoch(d)
		} else {
			out := notify.Fold(rows, d.ID.Index, found.Pos)
			if why, epoch = again(d, &out, spec.ForceResend); why != "" {
				b.why[i] = why
				return false, nil
			}
		}
		recs[i] = record(&found, d, epoch, spec.Expired, b.r.j.ID, b.r.spec.By)
		obs[i] = observed{chunk: chunk, index: d.ID.Index, epoch: epoch}
		return !mine, nil
	}, func(i int) uint16 {
		if obs[i].epoch == 0 { // a trigger
			return b.letters[i].Epoch + 1
		}
		return obs[i].epoch
	})
	if err != nil {
		return err
	}
	b.r.m.cfg.Hit("job-marked-before-publish")
	out := make([]log.Record, 0, len(recs))
	for i, d := range b.letters {
		if b.why[i] != "" {
			continue
		}
		if d.Channel == ChannelTrigger {
			done, err := b.r.m.cfg.Triggers.Requeue(ctx, LetterID(d))
			if err != nil {
				return err
			}
			if !done {
				b.why[i] = SkipReplayed
			}
			continue
		}
		out = append(out, *recs[i])
	}
	if len(out) > 0 {
		if err := b.r.m.cfg.Log.Append(ctx, out); err != nil {
			return err
		}
	}
	for i := range obs {
		if b.why[i] == "" && obs[i].epoch > 0 {
			b.r.watch.add(obs[i])
		}
	}
	return nil
}

// again decides by what is known of a notification now: why it is not sent, or
// under which epoch it is.
func again(d *engine.DeadLetter, out *notify.Outcome, force bool) (why string, epoch uint16) {
	if out.Epoch > d.Epoch && (out.State != notify.Unknown || !force) {
		return SkipReplayed, 0
	}
	switch out.State {
	case notify.Failed, notify.Accepted: // Accepted: the row is gone, the letter says enough
	case notify.Unknown:
		if !force {
			return SkipUnknown, 0
		}
	default:
		return SkipReached, 0
	}
	return "", max(d.Epoch, out.Epoch) + 1
}

// markedEpoch is the epoch under which this job has begun to send a letter.
func markedEpoch(d *engine.DeadLetter) uint16 {
	if _, at, ok := strings.Cut(d.Job, "@"); ok {
		if n, err := strconv.ParseUint(at, 10, 16); err == nil {
			return uint16(n)
		}
	}
	return d.Epoch + 1
}

// find returns the receiver; last is the chunk found before.
func (b *batch) find(ctx context.Context, last *engine.Found, id notify.ID) (engine.Found, error) {
	if last.ID.Fan && last.ID.Base == id.Base {
		rd, rec := notify.ReadReceivers(last.Envelope.Receivers), notify.Receiver{}
		for pos := uint32(0); rd.Next(&rec) && rec.Index <= id.Index; pos++ {
			if rec.Index == id.Index {
				f := *last
				f.ID, f.Pos, f.User, f.Address = id, pos, rec.User, rec.Address
				return f, nil
			}
		}
	}
	f, err := b.r.m.cfg.History.Find(ctx, id)
	if err == nil {
		*last = f
	}
	return f, err
}

// record is the envelope of one receiver under the next epoch. Its key follows
// from the notification and the epoch: the same letter replayed twice, by whomever,
// is one row.
func record(f *engine.Found, d *engine.DeadLetter, epoch uint16, expired, job, by string) *log.Record {
	e := Again(f, d.ID.Index, epoch)
	if expired == ExpiredSend && e.Expires != 0 && e.Expires <= time.Now().UnixMilli() {
		e.Expires = 0
	}
	h := func(k, v string) log.Header { return log.Header{Key: k, Value: []byte(v)} }
	return &log.Record{
		Topic: e.Lane().DLQTopic(), Partition: f.LogPart, Value: notify.AppendEnvelope(nil, &e),
		Headers: []log.Header{
			h("notify-origin", fmt.Sprintf("%s/%d/%d", d.Topic, d.Partition, d.Offset)),
			h("notify-error-class", d.Class), h("notify-error-code", d.Code),
			h("notify-first-failed-at", time.UnixMilli(d.FirstFailed).UTC().Format(time.RFC3339Nano)),
			h("notify-attempts", strconv.Itoa(d.Attempts)), h("notify-replay-count", strconv.Itoa(int(epoch))),
			h("notify-replay-id", job), h("notify-replay-actor", by),
		},
	}
}

// Again is the envelope that sends one receiver of a chunk once more, under an
// epoch: the same for the same.
func Again(f *engine.Found, index uint32, epoch uint16) notify.Envelope {
	e := f.Envelope
	e.Parent = notify.ColumnDigest(e.Receivers)
	var w notify.ReceiverWriter
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	for rd.Next(&rec) {
		if rec.Index == index {
			w.Append(rec)
			break
		}
	}
	e.Receivers, e.Count, e.Total = w.Bytes(), w.Count(), 0
	e.Epoch, e.Attempt, e.Deferrals, e.First = epoch, 0, 0, index
	e.NotBefore, e.Cause = 0, causeReplay
	return e
}

// circuits stops or holds the job while no call of a letter's lane can be made.
func (b *batch) circuits(ctx context.Context) error {
	if b.r.m.cfg.Standing == nil {
		return nil
	}
	for {
		why := ""
		for _, d := range b.letters {
			if d == nil {
				continue
			}
			ch, ok := notify.ParseChannel(d.Channel)
			cat, known := notify.ParseCategory(d.Category)
			if !ok || !known {
				continue
			}
			if why = b.r.m.cfg.Standing(notify.LaneOf(ch, cat)); why != "" {
				break
			}
		}
		switch {
		case why == "":
			return nil
		case b.r.spec.Spec.OpenCircuit == CircuitStop:
			return stop{"a circuit is open: " + why}
		}
		if err := b.r.idle(ctx, 4*b.r.m.cfg.Poll); err != nil {
			return err
		}
	}
}
