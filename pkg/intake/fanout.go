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

// Fanout answers POST /v1/notifications:fanout with status 201, the first id, the number of
// accepted receivers, and the refused receivers. The id of receiver i is the first id with -i in
// place of -0. A refused receiver has an index too, which no other receiver gets.
//
// If the request is a part of a campaign, its key is (caller, campaign, part), whether or not it
// has an Idempotency-Key.
func (s *Service) Fanout(ctx context.Context, m request.Meta, body []byte) (a request.Answer, err error) {
	end := s.cfg.Events.beginRequest(m, len(body))
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
			m.Fingerprint(body) // computed here because this goroutine has a processor now
		}
		return s.planFanout(&m, &b, l)
	}
	if a, err = s.once.Do(ctx, &m, key, body, plan); errors.Is(err, errPartitionsRaised) {
		a, err = s.once.Do(ctx, &m, key, body, plan) // again with the new number of partitions; nothing was stored
	}
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Kind == notify.KindMismatch && b.campaign != "" {
		e.Field, e.Msg = "part", "this part of the campaign was already sent with another body"
	}
	return a, err
}

// fanBody is a fan-out with a decoded head. Its receivers are not decoded yet.
type fanBody struct {
	fanHead
	guess int // estimated number of receivers, computed from the size of the first receiver
	// feed adds the receivers to f and checks what follows them in the body.
	feed func(f *splitter) error
}

func (s *Service) planFanout(m *request.Meta, b *fanBody, l request.Basis) (*storePlan, error) {
	topic := b.lane().Topic()
	parts, err := s.partitions(topic, l.Base, l.Partitions)
	if err != nil {
		return nil, err
	}
	if err := s.rules.admit(&b.terms, l.Accepted, switchesFor(s, l)); err != nil {
		return nil, err
	}
	block := l.Block
	if block == 0 {
		block = firstBlock(int(parts), s.cfg.BlockReceivers)
	}
	fire := l.Fire
	if !l.Resumed {
		fire = s.rules.fireTime(&b.terms, l.Base, l.Accepted)
	}
	e := notify.Envelope{
		Chunk: notify.Chunk{Base: l.Base}, FanOut: true,
		Channel: b.channel, Category: b.category, Accepted: l.Accepted, Expires: b.expires,
		Caller: m.Caller, Campaign: b.campaign, Content: b.content, NotBefore: fire,
	}
	// The room for receivers must not depend on the trace, because a repeat with a frozen layout
	// may have another trace.
	room := s.cfg.MaxRecord - len(notify.AppendEnvelope(nil, &e)) - 64 - traceRoom
	e.Trace, e.TraceState = m.Trace, m.TraceState

	f, users := s.fans.Get().(*splitter), b.guess
	f.userPrefix = m.Users
	f.needs.readTexts(b.channel, &b.content)
	for {
		f.reset(b.channel, parts, block, s.cfg.MaxRejected, users)
		if err := b.feed(f); err != nil {
			s.fans.Put(f)
			return nil, err
		}
		if f.largestChunk() <= room || block == 1 || l.Block != 0 {
			break
		}
		block, users = f.fittingBlock(room), int(f.index)
	}
	if f.index == 0 {
		s.fans.Put(f)
		return nil, invalid("required", "receivers", "a fan-out must have at least one receiver")
	}
	if err := m.Load.Admit(b.channel.String(), int(f.index)); err != nil {
		s.fans.Put(f)
		return nil, err
	}
	p := &storePlan{s: s, m: m, basis: l, fire: fire, parts: parts, block: block, fanoutTopic: topic, done: func() { s.poolSplitter(f) }}
	s.addChunks(p, f, &e, topic)
	if b.campaign != "" {
		p.campaign = &campaignPart{id: b.campaign, part: b.part, accepted: f.accepted, rejected: int(f.index) - f.accepted}
	}
	p.answer = func(failed *failures) (request.Answer, bool, error) {
		return s.answerFanout(m, b, l.Base, fire, f, failed)
	}
	return p, nil
}

func (s *Service) addChunks(p *storePlan, f *splitter, e *notify.Envelope, topic string) {
	recs := f.makeRecords(e, topic)
	if e.NotBefore == 0 {
		p.recs, p.classes = recs, slices.Repeat([]storeClass{classOf(e.Category)}, len(recs))
		return
	}
	p.schedules = []engine.Schedule{{
		Base: e.Chunk.Base, Caller: e.Caller, Campaign: e.Campaign, Channel: e.Channel, Category: e.Category,
		FireAt: e.NotBefore, Created: e.Accepted, Expires: e.Expires, Partitions: p.parts, BlockSize: p.block,
		Receivers: f.index, Accepted: uint32(f.accepted), FanOut: true,
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

// poolSplitter puts a splitter back for the next request, unless its buffer grew very large.
func (s *Service) poolSplitter(f *splitter) {
	const most = 64 << 20
	f.users.dropPlaces()
	if cap(f.values) <= most {
		s.fans.Put(f)
	}
}

func (s *Service) answerFanout(m *request.Meta, b *fanBody, base notify.Base, fire int64, f *splitter, failed *failures) (request.Answer, bool, error) {
	c := classOf(b.category)
	if fire != 0 {
		c = classLater
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
		FirstID: notify.ID{Base: base, FanOut: true}.String(), Accepted: f.accepted, RejectedCount: int(f.index) - f.accepted,
		Rejected: make([]api.Rejected, len(f.rejected)),
	}
	for i, r := range f.rejected {
		out.Rejected[i] = api.Rejected{Index: r.index, Code: r.reason.code, Detail: r.reason.field + ": " + r.reason.detail}
	}
	body, err := json.Marshal(&out)
	return request.Answer{Status: http.StatusCreated, Body: body}, err == nil, err
}

// fanJSON is a fan-out whose receivers are not decoded yet.
type fanJSON struct {
	api.Fanout
	Part      *uint32        `json:"part"` // part of a campaign; the first part is 0
	Receivers jsontext.Value `json:"receivers"`
}

func (j *fanJSON) toHead(h *fanHead) error {
	if err := h.readTerms(j.Channel, j.Category, &j.Content, j.ScheduledAt, j.ExpiresAt); err != nil {
		return err
	}
	h.campaign = j.Campaign
	if j.Part != nil {
		h.part = *j.Part
	}
	return checkCampaign(h.campaign, j.Part != nil)
}

// readFanJSON reads {head..., "receivers": [...], head...}. The JSON library checks the body with
// null in place of the array, and the scanner checks the array. So the whole body is checked.
func readFanJSON(body []byte, b *fanBody) error {
	at, err := findMember(body, "receivers")
	if err != nil {
		return err
	}
	if at < 0 {
		if err := readFanHead(body, &b.fanHead); err != nil {
			return err
		}
		return invalid("required", "receivers", "a fan-out must have at least one receiver")
	}
	// readFanJSON must know the end of the array before it reads the array. If the body ends in
	// "]}", the array most likely ends there, because no other field is an array. Then the body is
	// scanned only once. If the guess is wrong, skipValue finds the end.
	end := lastArrayEnd(body)
	if end <= at || readFanHead(withNull(body, at, end), &b.fanHead) != nil {
		var ok bool
		if end, ok = skipValue(body, at); !ok {
			return badJSON(end, "the array of receivers does not end")
		}
		if err := readFanHead(withNull(body, at, end), &b.fanHead); err != nil {
			return err
		}
	}
	b.guess = guessCount(body, at+1, end)
	b.feed = func(f *splitter) error {
		got, err := scanArray(body, at, f)
		if err == nil && got != end {
			if err = readFanHead(withNull(body, at, got), new(fanHead)); err == nil {
				err = badJSON(got, "the array of receivers does not end here")
			}
		}
		return err
	}
	return nil
}

// guessCount returns how many values of the size of the first value fit into b[first:limit].
func guessCount(b []byte, first, limit int) int {
	first = skipSpace(b, first)
	end, ok := skipValue(b, first)
	if !ok || end >= limit {
		return 1
	}
	return (limit-first)/(end-first+1) + 1
}

// lastArrayEnd returns the position after the array that ends the object b. It returns -1 if the
// object does not end with an array.
func lastArrayEnd(b []byte) int {
	b = bytes.TrimRight(b, " \t\r\n")
	b, ok := bytes.CutSuffix(b, []byte("}"))
	if b = bytes.TrimRight(b, " \t\r\n"); ok && len(b) > 0 && b[len(b)-1] == ']' {
		return len(b)
	}
	return -1
}

// withNull returns a copy of b with null in place of b[start:end].
func withNull(b []byte, start, end int) []byte {
	out := make([]byte, 0, start+4+len(b)-end)
	out = append(out, b[:start]...)
	out = append(out, "null"...)
	return append(out, b[end:]...)
}

// readFanHead decodes a body whose receivers are null or missing.
func readFanHead(b []byte, h *fanHead) error {
	var j fanJSON
	if err := request.Decode(b, &j); err != nil {
		return err
	}
	return j.toHead(h)
}

// readFanLines decodes the head from the first line, which has no receivers, and a receiver from
// each following line. It skips blank lines.
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
		return invalid("unknown_field", "receivers", "must not be in the head; write each receiver on its own line after the head")
	}
	b.guess = guessCount(body, end, len(body))
	b.feed = func(f *splitter) error { return scanLines(body, end, f) }
	return j.toHead(&b.fanHead)
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
