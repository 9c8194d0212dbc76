package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// fanoutResult is what a fan-out prints at its end.
type fanoutResult struct {
	Campaign     string           `json:"campaign"`
	Parts        int              `json:"parts"`         // stored, by this run and by earlier ones
	SkippedParts int              `json:"skipped_parts"` // of these, by earlier ones
	Receivers    int64            `json:"receivers"`
	Accepted     int64            `json:"accepted"`
	Rejected     int64            `json:"rejected"`
	Reasons      map[string]int64 `json:"reasons,omitempty"` // of the rejected, by code
	RejectedFile string           `json:"rejected_file,omitempty"`
	Counts       map[string]int   `json:"counts,omitempty"` // by state, with --wait
}

// fanoutRun is one run of "send --fanout".
type fanoutRun struct {
	p      *program
	o      *sendOptions
	t      target
	cl     *api.Client
	state  *campaignState
	source *bufio.Reader
	head   []byte
	size   int64
	bar    *progress
	begun  bool // the state is on disk, so there is something to go on with
	result fanoutResult
}

func runSendFanout(ctx context.Context, p *program, o *sendOptions) error {
	t, err := p.target()
	if err != nil {
		return err
	}
	f, size, err := openInput(p, o.fanout)
	if err != nil {
		return err
	}
	defer func() { _ = f.close() }() // it was only read
	r := &fanoutRun{p: p, o: o, t: t, source: bufio.NewReaderSize(f, headSize), size: size}
	if r.head, err = r.source.Peek(headSize); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", label(o.fanout), err)
	}
	r.head = bytes.Clone(r.head)
	if err := r.begin(ctx); err != nil {
		if ctx.Err() != nil {
			p.note("nothing was sent yet")
		}
		return err
	}
	if o.dryRun {
		return r.dry()
	}
	if r.state.Complete {
		p.note("campaign %s was sent completely by an earlier run; nothing is left to send", r.state.Campaign)
		r.fill()
	} else {
		if err := p.confirm(&t, changes, "send "+label(o.fanout)+" as campaign "+r.state.Campaign); err != nil {
			return err
		}
		r.cl = p.clientOf(&t)
		r.cl.Retries = 10
		if err := r.send(ctx); err != nil {
			return r.stopped(ctx, err)
		}
	}
	return r.finish(ctx)
}

// begin finds or makes the state of the campaign, and reads the file through
// once before anything of it is sent.
func (r *fanoutRun) begin(ctx context.Context) error {
	o, abs := r.o, r.o.fanout
	if abs != "-" {
		a, err := filepath.Abs(abs)
		if err != nil {
			return err
		}
		abs = a
	}
	if o.campaign != "" {
		if _, err := notify.ParseBase(strings.TrimPrefix(o.campaign, "cmp_")); err != nil || !strings.HasPrefix(o.campaign, "cmp_") {
			return term.Usage("--campaign %q: it is cmp_ and a ULID", o.campaign)
		}
		s, err := openCampaign(r.p.getenv, o.campaign)
		if err != nil {
			return err
		}
		if s != nil {
			r.state, r.begun = s, true
			return r.goOn()
		}
	}
	if !o.contentNamed {
		if o.campaign != "" {
			return term.Exitf(term.ExitNotFound, "nothing is noted here of campaign %s; give the same content again to go on with it", o.campaign)
		}
		return term.Usage("what is sent? --channel and --title, --body or --template")
	}
	n, err := o.notification(r.p)
	if err != nil {
		return err
	}
	format, err := receiverFormat(o.format, o.fanout, r.head)
	if err != nil {
		return err
	}
	id := cmp.Or(o.campaign, "cmp_"+notify.NewBase(r.p.now()).String())
	r.state = &campaignState{
		Campaign: id, Server: r.t.server, Created: r.p.now().UTC(), PartSize: o.partSize,
		Fanout: api.Fanout{Channel: n.Channel, Category: n.Category, Content: n.Content, ScheduledAt: n.ScheduledAt, ExpiresAt: n.ExpiresAt, Campaign: id},
		File:   abs, Size: r.size, Head: digest(r.head), Format: format, path: campaignFile(r.p.getenv, id),
	}
	if o.partSize < 1 || o.partSize > 1_000_000 {
		return term.Usage("--part-size %d: it is 1 to 1,000,000", o.partSize)
	}
	return r.check(ctx)
}

// goOn checks that this run continues what an earlier one began.
func (r *fanoutRun) goOn() error {
	s, o := r.state, r.o
	if err := s.same(r.t.server, o.fanout, digest(r.head), r.size); err != nil {
		return err
	}
	if !o.contentNamed {
		return nil
	}
	n, err := o.notification(r.p)
	if err != nil {
		return err
	}
	was, now := s.Fanout, api.Fanout{Channel: n.Channel, Category: n.Category, Content: n.Content, Campaign: s.Campaign}
	was.ScheduledAt, was.ExpiresAt = nil, nil // fixed by the first run
	a, errA := json.Marshal(was)
	b, errB := json.Marshal(now)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	if !bytes.Equal(a, b) {
		return &term.Error{Exit: term.ExitConflict, Err: fmt.Errorf("campaign %s was begun with another content", s.Campaign), Next: []string{"go on without content flags, or leave out --campaign to begin a new one"}}
	}
	return nil
}

// shownBad is how many bad lines are printed.
const shownBad = 10

// check reads a file through: every bad line is told before anything is sent,
// and the receivers are counted. A stream is checked as it comes.
func (r *fanoutRun) check(ctx context.Context) error {
	if r.size < 0 {
		return nil
	}
	f, _, err := openInput(r.p, r.o.fanout)
	if err != nil {
		return err
	}
	defer func() { _ = f.close() }() // it was only read
	bar := r.p.progress("checking", 0)
	defer bar.end()
	var bad []string
	n, wrongs := int64(0), 0
	for _, err := range readReceivers(f, r.o.fanout, r.state.Format) {
		if err != nil {
			if _, ok := errors.AsType[*badLine](err); !ok {
				return err
			}
			if wrongs++; wrongs <= shownBad {
				bad = append(bad, err.Error())
			}
			continue
		}
		if n++; n%10_000 == 0 {
			bar.add(10_000)
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	if wrongs > shownBad {
		bad = append(bad, fmt.Sprintf("and %s more", count(wrongs-shownBad)))
	}
	if wrongs > 0 {
		return term.Usage("%s of %s receivers are wrong; nothing was sent\n%s", count(wrongs), count(n+int64(wrongs)), strings.Join(bad, "\n"))
	}
	if n == 0 {
		return term.Usage("%s holds no receivers", label(r.o.fanout))
	}
	r.state.Total = n
	return nil
}

func (r *fanoutRun) send(ctx context.Context) error {
	s := r.state
	if err := s.save(); err != nil {
		return err
	}
	skipped := s.parts()
	r.begun, r.result.SkippedParts = true, skipped
	if skipped > 0 {
		r.p.note("campaign %s goes on behind %s receivers in %d parts", s.Campaign, count(s.Stored), skipped)
	} else {
		r.p.note("campaign %s", s.Campaign)
	}
	r.bar = r.p.progress("sending", max(0, s.Total-s.Stored))
	defer r.bar.end()
	was := &campaignState{Next: s.Next, Ahead: slices.Clone(s.Ahead)} // done changes s while Skip is asked
	_, err := r.cl.SendFanout(ctx, api.FanoutSend{
		Fanout: s.Fanout, Receivers: r.receivers(ctx), PartSize: s.PartSize, InFlight: r.o.inFlight,
		Skip: was.has, Done: r.done,
	})
	if err != nil {
		return err
	}
	if s.parts() == 0 {
		return term.Usage("%s holds no receivers", label(r.o.fanout))
	}
	s.Complete = true
	r.fill()
	return s.save()
}

// receivers reads the source, and stops at the end of ctx between parts too.
func (r *fanoutRun) receivers(ctx context.Context) iter.Seq2[api.Receiver, error] {
	return func(yield func(api.Receiver, error) bool) {
		n := 0
		for rcv, err := range readReceivers(r.source, r.o.fanout, r.state.Format) {
			if n++; n%1000 == 0 && ctx.Err() != nil {
				yield(api.Receiver{}, ctx.Err())
				return
			}
			if !yield(rcv, err) {
				return
			}
		}
	}
}

// done notes a stored part. SendFanout calls it one part at a time.
func (r *fanoutRun) done(d api.PartDone) error {
	if err := r.noteRejected(&d); err != nil {
		return err
	}
	s := r.state
	s.add(d.Part)
	s.Stored += int64(d.Receivers)
	s.Accepted += int64(d.Accepted)
	s.Rejected += int64(d.RejectedCount)
	r.bar.add(d.Receivers)
	return s.save()
}

// rejectedFile is where the refused receivers of a campaign are listed.
func (s *campaignState) rejectedFile() string {
	return strings.TrimSuffix(s.path, ".json") + ".rejected.jsonl"
}

func (r *fanoutRun) noteRejected(d *api.PartDone) error {
	if len(d.Rejected) == 0 {
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	if r.state.Reasons == nil {
		r.state.Reasons = map[string]int64{}
	}
	for _, x := range d.Rejected {
		r.state.Reasons[x.Code]++
		if err := enc.Encode(map[string]any{"receiver": d.First + int64(x.Index) + 1, "code": x.Code, "detail": x.Detail}); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(r.state.rejectedFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b.Bytes())
	return errors.Join(err, f.Close())
}
