package intake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Fanout answers POST /v1/notifications:fanout: 201 with the first id, how many
// receivers were accepted, and which were refused. Receiver i of the request
// has the id of the first with i for its index, refused ones counted too.
//
// A part of a campaign has (caller, campaign, part) for its key, with or
// without an Idempotency-Key.
func (s *Service) Fanout(ctx context.Context, m request.Meta, body []byte) (a request.Answer, err error) {
	end := s.cfg.Events.begin(m, len(body))
	defer func() { end(err) }()
	if err := m.Check(); err != nil {
		return request.Answer{}, err
	}
	var read func([]byte, *fanBody) error
	switch request.Media(m.ContentType) {
	case request.JSON:
		read = readFanJSON
	case request.NDJSON:
		read = readFanLines
	case request.Proto:
		read = readFanProto
	default:
		return request.Answer{}, request.Unsupported(request.JSON, request.NDJSON, request.Proto)
	}
	var b fanBody
	key := engine.IdemKey{Caller: m.Caller, Route: m.Route, Key: m.Key}
	if err := read(body, &b); err != nil {
		if key.Key == "" {
			return request.Answer{}, err
		}
		return s.once.Do(ctx, &m, key, body, func(request.Basis) (request.Plan, error) { return nil, err })
	}
	if b.campaign != "" {
		key = campaignKey(m.Caller, b.campaign, b.part)
	}
	plan := func(l request.Basis) (request.Plan, error) {
		done, err := s.cfg.Admission.Decode(ctx, b.category)
		if err != nil {
			return nil, err
		}
		defer done()
		if key.Key != "" {
			m.Fingerprint(body) // with the same processor
		}
		return s.planFanout(&m, &b, l)
	}
	if a, err = s.once.Do(ctx, &m, key, body, plan); errors.Is(err, errRaised) {
		a, err = s.once.Do(ctx, &m, key, body, plan) // by the new number; nothing was stored
	}
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Kind == notify.KindMismatch && b.campaign != "" { // whatever key came with it
		e.Field, e.Msg = "part", "this part of the campaign was sent with another body"
	}
	return a, err
}

// fanBody is a fan-out whose head is read and whose receivers are not.
type fanBody struct {
	fanHead
	guess int // how many receivers there are, by the size of the first
	// feed reads the receivers, and checks what follows them.
	feed func(f *splitter) error
}

func (s *Service) planFanout(m *request.Meta, b *fanBody, l request.Basis) (*plan, error) {
	topic := b.lane().Topic()
	parts, err := s.partitions(topic, l.Base, l.Partitions)
	if err != nil {
		return nil, err
	}
	if err := s.rules.admit(&b.terms, l.Accepted, refusing(s, l)); err != nil {
		return nil, err
	}
	block := l.Block
	if block == 0 {
		block = firstBlock(int(parts), s.cfg.BlockReceivers)
	}
	fire := l.Fire
	if !l.Resumed {
		fire = s.rules.fire(&b.terms, l.Base, l.Accepted)
	}
	e := notify.Envelope{
		Chunk: notify.Chunk{Base: l.Base}, Fan: true,
		Channel: b.channel, Category: b.category, Accepted: l.Accepted, Expires: b.expires,
		Caller: m.Caller, Campaign: b.campaign, Content: b.content, NotBefore: fire,
	}
	// The same room whatever the trace: a repeat that finds its layout frozen may
	// come with another one.
	room := s.cfg.MaxRecord - len(notify.AppendEnvelope(nil, &e)) - 64 - traceRoom
	e.Trace, e.TraceState = m.Trace, m.TraceState

	f, users := s.fans.Get().(*splitter), b.guess
	f.only = m.Users
	f.needs.of(b.channel, &b.content)
	for {
		f.begin(b.channel, parts, block, s.cfg.MaxRejected, users)
		if err := b.feed(f); err != nil {
			s.fans.Put(f)
			return nil, err
		}
		if f.largest() <= room || block == 1 || l.Block != 0 {
			break
		}
		block, users = f.fitting(room), int(f.index)
	}
	if f.index == 0 {
		s.fans.Put(f)
		return nil, invalid("required", "receivers", "a fan-out has at least one receiver")
	}
	if err := m.Load.Admit(b.channel.String(), int(f.index)); err != nil {
		s.fans.Put(f)
		return nil, err
	}
	p := &plan{s: s, m: m, l: l, fire: fire, parts: parts, block: block, fan: topic, done: func() { s.giveBack(f) }}
	s.addChunks(p, f, &e, topic)
	if b.campaign != "" {
		p.campaign = &campaignPart{id: b.campaign, part: b.part, accepted: f.accepted, rejected: int(f.index) - f.accepted}
	}
	p.answer = func(failed *failures) (request.Answer, bool, error) {
		return s.answerFanout(m, b, l.Base, fire, f, failed)
	}
	return p, nil
}

func (s *Service) addChunks(p *plan, f *splitter, e *notify.Envelope, topic string) {
	recs := f.records(e, topic)
	if e.NotBefore == 0 {
		p.recs, p.classes = recs, slices.Repeat([]class{classOf(e.Category)}, len(recs))
		return
	}
	p.schedules = []engine.Schedule{{
		Base: e.Chunk.Base, Caller: e.Caller, Campaign: e.Campaign, Channel: e.Channel, Category: e.Category,
		FireAt: e.NotBefore, Created: e.Accepted, Expires: e.Expires, Partitions: p.parts, BlockSize: p.block,
		Receivers: f.index, Accepted: uint32(f.accepted), Fan: true,
	}}
	p.timers = make([]engine.Timer, len(recs))
	for i, r := range recs {
		c := f.chunks[i]
		p.timers[i] = engine.Timer{
			FireAt: e.NotBefore, Kind: s.cfg.TimerKind, Target: topic, Payload: r.Value,
			ID:   notify.Chunk{Base: e.Chunk.Base, Partition: c.partition, Block: c.block}.TimerID(0),
			Head: e.Chunk.Base, Weight: c.count,
		}
	}
}

// giveBack keeps a splitter for the next request, unless it grew very large.
func (s *Service) giveBack(f *splitter) {
	const most = 64 << 20
	f.users.end()
	if cap(f.values) <= most {
		s.fans.Put(f)
	}
}

func (s *Service) answerFanout(m *request.Meta, b *fanBody, base notify.Base, fire int64, f *splitter, failed *failures) (request.Answer, bool, error) {
	c := classOf(b.category)
	if fire != 0 {
		c = later
	}
	if failed[c] != nil {
		return request.Answer{}, false, failed[c]
	}
	ev := &s.cfg.Events
	ev.accepted(b.channel, b.category, m.Caller, f.accepted)
	for code, n := range f.rejects {
		ev.rejected(m.Caller, code, n)
	}
	out := api.FanoutResult{
		FirstID: notify.ID{Base: base, Fan: true}.String(), Accepted: f.accepted, RejectedCount: int(f.index) - f.accepted,
		Rejected: make([]api.Rejected, len(f.rejected)),
	}
	for i, r := range f.rejected {
		out.Rejected[i] = api.Rejected{Index: r.index, Code: r.why.code, Detail: r.why.field + ": " + r.why.detail}
	}
	body, err := json.Marshal(&out)
	return request.Answer{Status: http.StatusCreated, Body: body}, err == nil, err
}

// fanJSON is a fan-out whose receivers are read apart.
type fanJSON struct {
	api.Fanout
	Part      *uint32        `json:"part"` // of a campaign, the first is 0
	Receivers jsontext.Value `json:"receivers"`
}

func (j *fanJSON) head(h *fanHead) error {
	if err := h.read(j.Channel, j.Category, &j.Content, j.ScheduledAt, j.ExpiresAt); err != nil {
		return err
	}
	h.campaign = j.Campaign
	if j.Part != nil {
		h.part = *j.Part
	}
	return checkCampaign(h.campaign, j.Part != nil)
}

// readFanJSON reads {head..., "receivers": [...], head...}. The library checks
// the body with null in place of the array, the scanner checks the array:
// together that is the whole body.
func readFanJSON(body []byte, b *fanBody) error {
	at, err := topLevel(body, "receivers")
	if err != nil {
		return err
	}
	if at < 0 {
		if err := readFanHead(body, &b.fanHead); err != nil {
			return err
		}
		return invalid("required", "receivers", "a fan-out has at least one receiver")
	}
	// Where the array ends is needed before it is read. A body that ends in
	// "]}" ends with it: no other field is an array. So it need not be looked
	// through twice; should the guess be wrong, the body is.
	end := lastArrayEnd(body)
	if end <= at || readFanHead(without(body, at, end), &b.fanHead) != nil {
		var ok bool
		if end, ok = skipValue(body, at); !ok {
			return badJSON(end, "the receivers do not end")
		}
		if err := readFanHead(without(body, at, end), &b.fanHead); err != nil {
			return err
		}
	}
	b.guess = guess(body, at+1, end)
	b.feed = func(f *splitter) error {
		got, err := scanArray(body, at, f)
		if err == nil && got != end {
			if err = readFanHead(without(body, at, got), new(fanHead)); err == nil {
				err = badJSON(got, "the receivers do not end here")
			}
		}
		return err
	}
	return nil
}

// guess returns how many values like the first one fit in b[from:to].
func guess(b []byte, from, to int) int {
	from = skipSpace(b, from)
	end, ok := skipValue(b, from)
	if !ok || end >= to {
		return 1
	}
	return (to-from)/(end-from+1) + 1
}

// lastArrayEnd returns the position behind the array that is the last thing in
// the object b, -1 when something else is.
func lastArrayEnd(b []byte) int {
	b = bytes.TrimRight(b, " \t\r\n")
	b, ok := bytes.CutSuffix(b, []byte("}"))
	if b = bytes.TrimRight(b, " \t\r\n"); ok && len(b) > 0 && b[len(b)-1] == ']' {
		return len(b)
	}
	return -1
}

// without returns b with null in place of b[from:to].
func without(b []byte, from, to int) []byte {
	out := make([]byte, 0, from+4+len(b)-to)
	out = append(out, b[:from]...)
	out = append(out, "null"...)
	return append(out, b[to:]...)
}

// readFanHead reads a body whose receivers are null or left out.
func readFanHead(b []byte, h *fanHead) error {
	var j fanJSON
	if err := request.Decode(b, &j); err != nil {
		return err
	}
	return j.head(h)
}

// readFanLines reads a head without receivers in the first line and a receiver
// in each line after it. Blank lines are skipped.
func readFanLines(body []byte, b *fanBody) error {
	start := skipSpace(body, 0)
	end := len(body)
	if n := bytes.IndexByte(body[start:], '\n'); n >= 0 {
		end = start + n
	}
	var j fanJSON
	if err := request.Decode(body[start:end], &j); err != nil {
		return err
	}
	if j.Receivers != nil {
		return invalid("unknown_field", "receivers", "there is no such field in a head; each receiver is a line after it")
	}
	b.guess = guess(body, end, len(body))
	b.feed = func(f *splitter) error { return scanLines(body, end, f) }
	return j.head(&b.fanHead)
}

func readFanProto(body []byte, b *fanBody) error {
	h, count, column, err := readFanout(body)
	if err != nil {
		return err
	}
	b.fanHead, b.guess = h, min(int(count), len(column)/2) // a receiver has at least two bytes
	b.feed = func(f *splitter) error { return columnReceivers(column, count, f) }
	return nil
}
