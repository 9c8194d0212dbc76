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

// fanoutResult is the printed result of a fan-out.
type fanoutResult struct {
	Campaign     string           `json:"campaign"`
	Parts        int              `json:"parts"`         // parts that this run and earlier runs stored
	SkippedParts int              `json:"skipped_parts"` // parts that earlier runs stored
	Receivers    int64            `json:"receivers"`
	Accepted     int64            `json:"accepted"`
	Rejected     int64            `json:"rejected"`
	Reasons      map[string]int64 `json:"reasons,omitempty"` // rejected receivers by code
	RejectedFile string           `json:"rejected_file,omitempty"`
	Counts       map[string]int   `json:"counts,omitempty"` // receivers by state; set only with --wait
}

// fanoutRun is a single run of "send --fanout".
type fanoutRun struct {
	p          *program
	o          *sendOptions
	t          target
	cl         *api.Client
	state      *campaignState
	source     *bufio.Reader
	head       []byte
	size       int64
	bar        *progress
	stateSaved bool // the state is on the disk, so a later run can continue
	result     fanoutResult
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
	defer func() { _ = f.close() }() // closing cannot lose data, because it was only read
	r := &fanoutRun{p: p, o: o, t: t, source: bufio.NewReaderSize(f, headSize), size: size}
	if r.head, err = r.source.Peek(headSize); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", label(o.fanout), err)
	}
	r.head = bytes.Clone(r.head)
	if err := r.prepareState(ctx); err != nil {
		if ctx.Err() != nil {
			p.note("nothing was sent yet")
		}
		return err
	}
	if o.dryRun {
		return r.printFirstPart()
	}
	if r.state.Complete {
		p.note("an earlier run sent campaign %s completely; there is nothing left to send", r.state.Campaign)
		r.fillResult()
	} else {
		if err := p.confirm(&t, changes, "send "+label(o.fanout)+" as campaign "+r.state.Campaign); err != nil {
			return err
		}
		r.cl = p.clientOf(&t)
		r.cl.Retries = 10
		if err := r.send(ctx); err != nil {
			return r.stoppedError(ctx, err)
		}
	}
	return r.finish(ctx)
}

// prepareState loads the state of the campaign, or creates it. For a new campaign it first reads
// the whole file to check it, before anything is sent.
func (r *fanoutRun) prepareState(ctx context.Context) error {
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
			return term.Usage("--campaign %q must be cmp_ and a ULID", o.campaign)
		}
		s, err := openCampaign(r.p.getenv, o.campaign)
		if err != nil {
			return err
		}
		if s != nil {
			r.state, r.stateSaved = s, true
			return r.checkContinuation()
		}
	}
	if !o.contentNamed {
		if o.campaign != "" {
			return term.Exitf(term.ExitNotFound, "this machine has no state of campaign %s; to continue it, give the same content flags again", o.campaign)
		}
		return term.Usage("no content is given: use --channel and --title, --body or --template")
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
		File:   abs, Size: r.size, Head: sha256Hex(r.head), Format: format, path: campaignFile(r.p.getenv, id),
	}
	if o.partSize < 1 || o.partSize > 1_000_000 {
		return term.Usage("--part-size %d must be from 1 to 1,000,000", o.partSize)
	}
	return r.checkReceivers(ctx)
}

// checkContinuation checks that this run has the same source and content as the first run.
func (r *fanoutRun) checkContinuation() error {
	s, o := r.state, r.o
	if err := s.checkSameSource(r.t.server, o.fanout, sha256Hex(r.head), r.size); err != nil {
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
	was.ScheduledAt, was.ExpiresAt = nil, nil // set by the first run, so not compared
	a, errA := json.Marshal(was)
	b, errB := json.Marshal(now)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	if !bytes.Equal(a, b) {
		return &term.Error{Exit: term.ExitConflict, Err: fmt.Errorf("campaign %s was started with other content", s.Campaign), Next: []string{"continue it without content flags, or omit --campaign to start a new campaign"}}
	}
	return nil
}

// shownBad is how many wrong lines are printed.
const shownBad = 10

// checkReceivers reads the whole file before anything is sent. It reports the wrong lines and
// counts the receivers. It does not read a stream: the receivers of a stream are checked while they
// are sent.
func (r *fanoutRun) checkReceivers(ctx context.Context) error {
	if r.size < 0 {
		return nil
	}
	f, _, err := openInput(r.p, r.o.fanout)
	if err != nil {
		return err
	}
	defer func() { _ = f.close() }() // closing cannot lose data, because it was only read
	bar := r.p.startProgress("checking", 0)
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
		return term.Usage("%s of %s receivers are invalid; nothing was sent\n%s", count(wrongs), count(n+int64(wrongs)), strings.Join(bad, "\n"))
	}
	if n == 0 {
		return term.Usage("%s contains no receivers", label(r.o.fanout))
	}
	r.state.Total = n
	return nil
}

func (r *fanoutRun) send(ctx context.Context) error {
	s := r.state
	if err := s.save(); err != nil {
		return err
	}
	skipped := s.partsDone()
	r.stateSaved, r.result.SkippedParts = true, skipped
	if skipped > 0 {
		r.p.note("campaign %s continues after %s receivers in %d parts", s.Campaign, count(s.Stored), skipped)
	} else {
		r.p.note("campaign %s", s.Campaign)
	}
	r.bar = r.p.startProgress("sending", max(0, s.Total-s.Stored))
	defer r.bar.end()
	// The function in the field Skip must read a copy of the state s, because recordPart changes s
	// at the same time.
	before := &campaignState{Next: s.Next, Ahead: slices.Clone(s.Ahead)}
	_, err := r.cl.SendFanout(ctx, api.FanoutSend{
		Fanout: s.Fanout, Receivers: r.receivers(ctx), PartSize: s.PartSize, InFlight: r.o.inFlight,
		Skip: before.isPartDone, Done: r.recordPart,
	})
	if err != nil {
		return err
	}
	if s.partsDone() == 0 {
		return term.Usage("%s contains no receivers", label(r.o.fanout))
	}
	s.Complete = true
	r.fillResult()
	return s.save()
}

// receivers returns the receivers of the file or stream one by one. It stops if ctx ends. It checks
// ctx only after every 1,000 receivers.
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

// recordPart records in the state file that the server has stored a part. SendFanout calls it for
// only one part at a time.
func (r *fanoutRun) recordPart(d api.PartDone) error {
	if err := r.noteRejected(&d); err != nil {
		return err
	}
	s := r.state
	s.markPartDone(d.Part)
	s.Stored += int64(d.Receivers)
	s.Accepted += int64(d.Accepted)
	s.Rejected += int64(d.RejectedCount)
	r.bar.add(d.Receivers)
	return s.save()
}

// rejectedFile returns the name of the file that lists the rejected receivers of a campaign.
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
