package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"golang.org/x/sync/errgroup"
)

// FanoutSend describes a fan-out of any size, which is sent as the parts of a campaign.
type FanoutSend struct {
	// Fanout is the content. Its field Campaign must be set. Its fields Part and Receivers are
	// ignored.
	Fanout Fanout
	// Receivers is read once, in order, and is never in memory as a whole. If it returns an error,
	// SendFanout stops.
	Receivers iter.Seq2[Receiver, error]
	// PartSize is the number of receivers per part. Default: 50,000.
	PartSize int
	// PartBytes is the largest size in bytes of a part's receivers. It keeps parts with variables
	// below the server's limit of 64 MiB. Default: 16 MiB.
	PartBytes int
	// InFlight is the number of parts sent at the same time. Default: 4.
	InFlight int
	// Skip reports whether an earlier run has stored a part. SendFanout does not send such a part.
	// If the source, PartSize and PartBytes are the same as in the earlier run, the parts are the
	// same too. nil: no part is skipped.
	Skip func(part uint32) bool
	// Done is called for each part that the server has stored, one call at a time, but in any
	// order. It should record what Skip needs later. If it returns an error, SendFanout stops. nil:
	// no call.
	Done func(PartDone) error
}

// PartDone is one stored part.
type PartDone struct {
	Part      uint32
	First     int64 // index of the part's first receiver in the source
	Receivers int
	Replayed  bool // an earlier try had stored the part already
	FanoutResult
}

// FanoutTotal counts the parts and receivers of a whole fan-out.
type FanoutTotal struct {
	Parts     int // stored by this call
	Skipped   int // stored by an earlier run
	Receivers int64
	Accepted  int64
	Rejected  int64
}

// SendFanout sends a fan-out of any size in parts. It repeats each part until the server has stored
// it. A repeat is harmless, because (campaign, part) is the idempotency key of the part. SendFanout
// keeps InFlight+1 parts in memory.
//
// After an error or the end of ctx, all parts that were passed to Done are stored. Parts that were
// being sent may or may not be stored. If cl.Retries is 0, SendFanout uses 10. If cl.Patience is 0,
// it uses ten minutes for each part, so that an overload delays a campaign but does not end it.
func (cl *Client) SendFanout(ctx context.Context, s FanoutSend) (FanoutTotal, error) {
	if s.Fanout.Campaign == "" {
		return FanoutTotal{}, notify.Invalid("campaign_missing", "campaign", "is missing; a fan-out in parts needs a campaign id")
	}
	s.PartSize = orDefault(s.PartSize, 50_000)
	s.PartBytes = orDefault(s.PartBytes, 16<<20)
	s.InFlight = orDefault(s.InFlight, 4)
	sender := *cl
	sender.Retries = cmp.Or(sender.Retries, 10)
	sender.Patience = cmp.Or(sender.Patience, 10*time.Minute)
	p := &partSender{client: &sender, send: s}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(s.InFlight)
	err := p.splitSource(ctx, g)
	if werr := g.Wait(); werr != nil {
		err = werr // the error of a part is the reason why splitSource stopped
	}
	return p.total, err
}

type partSender struct {
	client *Client
	send   FanoutSend
	bodies sync.Pool // of *[]byte: bodies of parts

	mu    sync.Mutex // guards total and calls of Done
	total FanoutTotal
}

// fanoutPart is one part while it is filled.
type fanoutPart struct {
	number    uint32
	first     int64
	receivers int
	body      *[]byte
	skip      bool
}

// splitSource reads the source and starts to send each part. It runs in the goroutine of
// SendFanout. That goroutine owns a part until it calls sendInBackground.
func (p *partSender) splitSource(ctx context.Context, g *errgroup.Group) error {
	var (
		cur   fanoutPart
		open  bool
		index int64
		size  int // bytes of the receivers in the part; also counted for a part that is skipped
	)
	var scratch []byte
	for r, err := range p.send.Receivers {
		if err != nil {
			return err
		}
		scratch = appendReceiver(scratch[:0], r)
		if open && (cur.receivers == p.send.PartSize || size+len(scratch) > p.send.PartBytes) {
			p.sendInBackground(ctx, g, cur)
			cur, open = fanoutPart{number: cur.number + 1}, false
		}
		if !open {
			if cur, err = p.openPart(cur.number, index); err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return err
			}
			open, size = true, 0
		}
		if !cur.skip {
			if cur.receivers > 0 {
				*cur.body = append(*cur.body, ',')
			}
			*cur.body = append(*cur.body, scratch...)
		}
		size += len(scratch)
		cur.receivers++
		index++
	}
	if open {
		p.sendInBackground(ctx, g, cur)
	}
	return nil
}

// openPart starts the part with this number. The body then contains everything before the
// receivers.
func (p *partSender) openPart(number uint32, first int64) (fanoutPart, error) {
	out := fanoutPart{number: number, first: first, skip: p.send.Skip != nil && p.send.Skip(number)}
	if out.skip {
		return out, nil
	}
	f := p.send.Fanout
	f.Part, f.Receivers = number, nil
	head, err := marshalBody(f)
	if err != nil {
		return out, err
	}
	var ok bool
	if out.body, ok = p.bodies.Get().(*[]byte); !ok {
		out.body = new([]byte)
	}
	*out.body = append((*out.body)[:0], bytes.TrimSuffix(head, []byte("]}"))...)
	return out, nil
}

// sendInBackground sends a filled part in a goroutine of g. It blocks while InFlight parts are
// being sent. The goroutine owns the body of the part until it returns the body to the pool.
func (p *partSender) sendInBackground(ctx context.Context, g *errgroup.Group, cur fanoutPart) {
	if cur.skip {
		p.mu.Lock()
		p.total.Skipped++
		p.mu.Unlock()
		return
	}
	*cur.body = append(*cur.body, ']', '}')
	g.Go(func() error {
		defer p.bodies.Put(cur.body)
		return p.sendPart(ctx, cur)
	})
}

func (p *partSender) sendPart(ctx context.Context, cur fanoutPart) error {
	done := PartDone{Part: cur.number, First: cur.first, Receivers: cur.receivers}
	reply, err := p.client.do(ctx, call{
		method: "POST", path: "/v1/notifications:fanout",
		contentType: TypeJSON, body: *cur.body, repeatable: true,
	}, &done.FanoutResult)
	if err != nil {
		return err
	}
	done.Replayed = reply.Replayed
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total.Parts++
	p.total.Receivers += int64(cur.receivers)
	p.total.Accepted += int64(done.Accepted)
	p.total.Rejected += int64(done.RejectedCount)
	if p.send.Done != nil {
		return p.send.Done(done)
	}
	return nil
}

// MarshalJSON writes a receiver as a plain string if it only has a user id.
func (rs Receivers) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, r := range rs {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendReceiver(b, r)
	}
	return append(b, ']'), nil
}

// UnmarshalJSON reads receivers in both forms: a string or an object.
func (rs *Receivers) UnmarshalJSON(b []byte) error {
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*rs = make(Receivers, len(raw))
	for i, v := range raw {
		to := any(&(*rs)[i])
		if v[0] == '"' {
			to = &(*rs)[i].UserID
		}
		if err := json.Unmarshal(v, to); err != nil {
			return err
		}
	}
	return nil
}

// appendReceiver appends a receiver as JSON. It is written by hand for speed, because a campaign
// may have hundreds of millions of receivers (see BenchmarkAppendReceiver).
func appendReceiver(b []byte, r Receiver) []byte {
	if r.Address == "" && len(r.Variables) == 0 {
		return appendString(b, r.UserID)
	}
	b = appendString(append(b, `{"user_id":`...), r.UserID)
	if r.Address != "" {
		b = appendString(append(b, `,"address":`...), r.Address)
	}
	if len(r.Variables) > 0 {
		b = append(append(b, `,"variables":`...), r.Variables...)
	}
	return append(b, '}')
}

func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string always marshals
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func orDefault(v, def int) int {
	if v <= 0 {
		return def
	}
	return v
}
