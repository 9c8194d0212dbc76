package intake

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/notifyd/notifyd/pkg/request"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Batch answers POST /v1/notifications:batch: 200 with a result per item, in
// their order. A bad item does not fail the rest, only a body whose items
// cannot be told apart is refused whole.
//
// While the log is away, items of otp and alert are accepted (spill buffer)
// and the others' results are errors; such an answer is not kept for the key,
// so a repeat tries the others again.
func (s *Service) Batch(ctx context.Context, m request.Meta, body []byte) (a request.Answer, err error) {
	end := s.cfg.Events.begin(m, len(body))
	defer func() { end(err) }()
	if err := m.Check(); err != nil {
		return request.Answer{}, err
	}
	var each func([]byte, *batch) error
	switch request.Media(m.ContentType) {
	case request.JSON:
		each = eachElement
	case request.NDJSON:
		each = eachLine
	case request.Proto:
		each = eachNotification
	default:
		return request.Answer{}, request.Unsupported(request.JSON, request.NDJSON, request.Proto)
	}
	key := engine.IdemKey{Caller: m.Caller, Route: m.Route, Key: m.Key}
	return s.once.Do(ctx, &m, key, body, func(l request.Basis) (request.Plan, error) {
		// What is in it is not known yet: it goes after fan-outs of otp and alert.
		done, err := s.cfg.Admission.Decode(ctx, notify.Transactional)
		if err != nil {
			return nil, err
		}
		defer done()
		if key.Key != "" {
			m.Fingerprint(body)
		}
		b := batch{s: s, m: &m, l: l, off: s.rules.off}
		if l.Resumed {
			b.off = switches(l.Partitions) &^ frozenSwitches
		}
		b.p = &plan{s: s, m: &m, l: l, block: s.lanesSum(l.Base), parts: uint16(b.off | frozenSwitches)}
		if l.Resumed && l.Block != b.p.block {
			// The records could not be the same again: better a clear error
			// than items that go out twice.
			return nil, &notify.Error{Kind: notify.KindConflict, Code: "layout_changed", Field: "Idempotency-Key", Msg: "the log's partitions were changed since this request was first sent, and part of it may have been accepted: look at its items before sending it under another key"}
		}
		b.ids = l.Base.Items()
		b.w = s.notes.Get().(*noteWriter)
		b.w.begin(b.p, b.m, l.Accepted, len(body), min(s.cfg.MaxBatch, len(body)/usualItem+1))
		b.items = b.w.items[:0]
		b.p.done = func() {
			clear(b.items) // drops their errors
			b.w.items = b.items
			s.giveBackNotes(b.w, b.p)
		}
		err = each(body, &b)
		if err == nil && len(b.items) == 0 {
			err = invalid("empty", "", "the batch has no items")
		}
		if err != nil {
			b.p.Release()
			return nil, err
		}
		b.p.answer = b.answer
		return b.p, nil
	})
}

// batch makes the plan of one batch.
type batch struct {
	s     *Service
	m     *request.Meta
	l     request.Basis
	off   switches
	p     *plan
	w     *noteWriter
	ids   *notify.Items
	n     note
	items []batchItem
	lanes [len(notify.Channels) + 1][2]lanePartitions // by channel; fast, bulk
}

type batchItem struct {
	base     notify.Base
	channel  notify.Channel
	category notify.Category
	class    class
	err      error
}

type lanePartitions struct {
	topic string
	n     uint16
}

// usualItem is less than what an item of a batch takes, in bytes: buffers made
// for as many seldom grow.
const usualItem = 96

// usualResult is what the result of an item that was accepted takes, in bytes.
const usualResult = 80

// full refuses an item that is one too many.
func (b *batch) full() error {
	if len(b.items) < b.s.cfg.MaxBatch {
		return nil
	}
	return request.TooManyItems(b.s.cfg.MaxBatch)
}

// item adds the next item, of which decode makes b.n. An error is of the whole
// batch.
func (b *batch) item(raw []byte, decode func([]byte, *note) error) error {
	if err := b.full(); err != nil {
		return err
	}
	if err := decode(raw, &b.n); err != nil {
		b.items = append(b.items, batchItem{err: err})
		return nil
	}
	return b.add(&b.n)
}

// add adds n as the next item.
func (b *batch) add(n *note) error {
	i := len(b.items)
	b.items = append(b.items, batchItem{})
	it := &b.items[i]
	if it.err = b.s.admitNote(n, b.m, b.l.Accepted, b.off); it.err != nil {
		if notify.KindOf(it.err) == notify.KindUnavailable {
			return it.err // of this process, so the whole batch goes to another one
		}
		return nil
	}
	speed := 0
	if n.category.Bulk() {
		speed = 1
	}
	lane := &b.lanes[n.channel][speed]
	if lane.n == 0 {
		lane.topic = n.lane().Topic()
		var err error
		if lane.n, err = b.s.partitions(lane.topic, b.l.Base, 0); err != nil {
			return err
		}
	}
	it.base, it.channel, it.category, it.class = b.ids.Item(i), n.channel, n.category, classOf(n.category)
	fire := b.s.rules.fire(&n.terms, it.base, b.l.Accepted)
	if fire != 0 {
		it.class = later
		b.p.fire = max(b.p.fire, fire)
	}
	b.w.write(b.p, b.s.cfg.TimerKind, n, it.base, fire, lane.topic, lane.n)
	return nil
}

// answer lists the results. An item that could not be stored is an error of
// its own as long as another was; else the whole request failed.
func (b *batch) answer(failed *failures) (request.Answer, bool, error) {
	accepted, unstored := 0, error(nil)
	for i := range b.items {
		it := &b.items[i]
		if it.err != nil {
			continue
		}
		if it.err = failed[it.class]; it.err != nil {
			unstored = it.err
			continue
		}
		accepted++
	}
	if accepted == 0 && unstored != nil {
		return request.Answer{}, false, unstored
	}
	ev := &b.s.cfg.Events
	// One event per channel and category: one per item was 3% of a batch.
	var told [len(notify.Channels) + 1][16]int
	out := append(make([]byte, 0, usualResult*len(b.items)+64), `{"results":[`...)
	for i := range b.items {
		it := &b.items[i]
		if i > 0 {
			out = append(out, ',')
		}
		switch {
		case it.err != nil:
			out = request.AppendProblem(out, it.err)
			ev.rejected(b.m.Caller, codeOf(it.err), 1)
		case it.class == later:
			out = appendResult(out, it.base, notify.Scheduled)
			told[it.channel][it.category]++
		default:
			out = appendResult(out, it.base, notify.Accepted)
			told[it.channel][it.category]++
		}
	}
	for ch := range told {
		for cat, n := range told[ch] {
			if n > 0 {
				ev.accepted(notify.Channel(ch), notify.Category(cat), b.m.Caller, n)
			}
		}
	}
	out = append(out, `],"accepted":`...)
	out = strconv.AppendInt(out, int64(accepted), 10)
	out = append(out, `,"rejected":`...)
	out = strconv.AppendInt(out, int64(len(b.items)-accepted), 10)
	return request.Answer{Status: http.StatusOK, Body: append(out, '}')}, unstored == nil, nil
}

// eachElement adds every element of the JSON array body to b. What is plain is
// read where it lies (fastNoteAt); of anything else only the end is looked for,
// and the library checks what is in it.
func eachElement(body []byte, b *batch) error {
	i := skipSpace(body, 0)
	if i == len(body) {
		return invalid("bad_json", "", "the body is empty")
	}
	if body[i] != '[' {
		return invalid("wrong_type", "", "the body must be an array")
	}
	i = skipSpace(body, i+1)
	if i < len(body) && body[i] == ']' {
		return trailing(body, i+1)
	}
	var n note // here and not in b: on the heap each of its fields is told to the collector
	for {
		end, ok := 0, false
		if b.full() == nil {
			end, ok = fastNoteAt(body, i, &n)
		}
		var err error
		if ok {
			err = b.add(&n)
		} else {
			if end, ok = skipValue(body, i); !ok {
				return badJSON(end, "an item is expected")
			}
			err = b.item(body[i:end:end], slowNote)
		}
		if err != nil {
			return err
		}
		switch i = skipSpace(body, end); {
		case i >= len(body):
			return badJSON(i, "the array does not end")
		case body[i] == ']':
			return trailing(body, i+1)
		case body[i] != ',':
			return badJSON(i, "a comma is expected after an item")
		}
		i = skipSpace(body, i+1)
	}
}

func trailing(b []byte, i int) error {
	if i = skipSpace(b, i); i < len(b) {
		return badJSON(i, "nothing may follow")
	}
	return nil
}

// eachLine adds every line of body that is not blank to b.
func eachLine(body []byte, b *batch) error {
	for line := range bytes.Lines(body) {
		if line = bytes.Trim(line, " \t\r\n"); len(line) == 0 {
			continue
		}
		if err := b.item(line, decodeNote); err != nil {
			return err
		}
	}
	return nil
}

// eachNotification adds every item of a notify.v1.Batch to b.
func eachNotification(body []byte, b *batch) error {
	for i := 0; len(body) > 0; i++ {
		num, typ, n := protowire.ConsumeTag(body)
		if n < 0 {
			return badProto("", "a damaged tag")
		}
		if num != 1 || typ != protowire.BytesType {
			return invalid("unknown_field", fmt.Sprintf("#%d", num), "a batch has only field 1, notifications")
		}
		v, k := protowire.ConsumeBytes(body[n:])
		if k < 0 {
			return badProto(fmt.Sprintf("notifications[%d]", i), "the item ends too early")
		}
		if err := b.item(v, readNote); err != nil {
			return err
		}
		body = body[n+k:]
	}
	return nil
}
