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

// Batch answers POST /v1/notifications:batch with status 200 and one result per item, in order. A
// bad item does not fail the other items. Batch refuses the whole body if the items cannot be
// separated, or if there are no items or too many.
//
// While the log is down, items of otp and alert that are due now are accepted into the spill
// buffer, and the results of all other items that are due now are errors. An answer with such
// errors is not stored with the Idempotency-Key. So a repeat of the request tries the failed items
// again.
func (s *Service) Batch(ctx context.Context, m request.Meta, body []byte) (a request.Answer, err error) {
	end := s.cfg.Events.beginRequest(m, len(body))
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
		// The categories of the items are not known yet. So every batch waits as transactional, which
		// is behind fan-outs of otp and alert.
		done, err := s.cfg.Admission.Decode(ctx, notify.Transactional)
		if err != nil {
			return nil, err
		}
		defer done()
		if key.Key != "" {
			m.Fingerprint(body)
		}
		b := batch{s: s, m: &m, basis: l, refusedSwitches: s.rules.off}
		if l.Resumed {
			b.refusedSwitches = switches(l.Partitions) &^ frozenSwitches
		}
		b.plan = &storePlan{s: s, m: &m, basis: l, block: s.partitionsSum(l.Base), parts: uint16(b.refusedSwitches | frozenSwitches)}
		if l.Resumed && l.Block != b.plan.block {
			// The numbers of partitions have changed since the first request, so the same records
			// cannot be made again. Return an error, because other records could send items twice.
			return nil, &notify.Error{Kind: notify.KindConflict, Code: "layout_changed", Field: "Idempotency-Key", Msg: "the partitions of the log have changed since this request was first sent, and some of its items may have been accepted; check the items before you send the request with another key"}
		}
		b.ids = l.Base.Items()
		b.writer = s.notes.Get().(*noteWriter)
		b.writer.lendBuffers(b.plan, b.m, l.Accepted, len(body), min(s.cfg.MaxBatch, len(body)/usualItem+1))
		b.items = b.writer.items[:0]
		b.plan.done = func() {
			clear(b.items) // so that their errors can be freed
			b.writer.items = b.items
			s.poolWriter(b.writer, b.plan)
		}
		err = each(body, &b)
		if err == nil && len(b.items) == 0 {
			err = invalid("empty", "", "the batch has no items")
		}
		if err != nil {
			b.plan.Release()
			return nil, err
		}
		b.plan.answer = b.answer
		return b.plan, nil
	})
}

// batch is one batch while its storePlan is built.
type batch struct {
	s               *Service
	m               *request.Meta
	basis           request.Basis
	refusedSwitches switches
	plan            *storePlan
	writer          *noteWriter
	ids             *notify.Items
	scratch         note
	items           []batchItem
	lanes           [len(notify.Channels) + 1][2]lanePartitions // by channel; fast, bulk
}

type batchItem struct {
	base     notify.Base
	channel  notify.Channel
	category notify.Category
	class    storeClass
	err      error
}

type lanePartitions struct {
	topic string
	n     uint16
}

// usualItem is less than the size in bytes of most items. Buffers get room for as many items of
// this size as fit into the body, so they seldom grow.
const usualItem = 96

// usualResult is the size in bytes of the result of an accepted item.
const usualResult = 80

// checkRoom returns an error if the batch already has MaxBatch items.
func (b *batch) checkRoom() error {
	if len(b.items) < b.s.cfg.MaxBatch {
		return nil
	}
	return request.TooManyItems(b.s.cfg.MaxBatch)
}

// addItem decodes the bytes of one item with the function decode and adds the item. If the
// function returns an error, this error is the item's result. But if addItem returns an error,
// the whole batch fails.
func (b *batch) addItem(raw []byte, decode func([]byte, *note) error) error {
	if err := b.checkRoom(); err != nil {
		return err
	}
	if err := decode(raw, &b.scratch); err != nil {
		b.items = append(b.items, batchItem{err: err})
		return nil
	}
	return b.addNote(&b.scratch)
}

// addNote adds n as the next item. If it returns an error, the whole batch fails.
func (b *batch) addNote(n *note) error {
	i := len(b.items)
	b.items = append(b.items, batchItem{})
	it := &b.items[i]
	if it.err = b.s.admitNote(n, b.m, b.basis.Accepted, b.refusedSwitches); it.err != nil {
		if notify.KindOf(it.err) == notify.KindUnavailable {
			return it.err // this process has a problem, so the caller should send the whole batch to another process
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
		if lane.n, err = b.s.partitions(lane.topic, b.basis.Base, 0); err != nil {
			return err
		}
	}
	it.base, it.channel, it.category, it.class = b.ids.Item(i), n.channel, n.category, classOf(n.category)
	fire := b.s.rules.fireTime(&n.terms, it.base, b.basis.Accepted)
	if fire != 0 {
		it.class = classLater
		b.plan.fire = max(b.plan.fire, fire)
	}
	b.writer.addNote(b.plan, b.s.cfg.TimerKind, n, it.base, fire, lane.topic, lane.n)
	return nil
}

// answer makes the answer with the results of all items. An item that could not be stored has an
// error as its result. If no item was stored and a store failed, answer returns the error of that
// store, and so the whole request fails.
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
	// Report one event for each channel and category. One event for each item took 3% of a batch's
	// time.
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
		case it.class == classLater:
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

// eachElement adds every element of the JSON array body to b. The function fastNoteAt reads plain
// elements in place. For any other element, eachElement only finds the end, and the JSON library
// checks the content.
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
		return checkEnd(body, i+1)
	}
	// Keep n on the stack. As a field of b it would be on the heap, and each write of a pointer
	// would cost a write barrier.
	var n note
	for {
		end, ok := 0, false
		if b.checkRoom() == nil {
			end, ok = fastNoteAt(body, i, &n)
		}
		var err error
		if ok {
			err = b.addNote(&n)
		} else {
			if end, ok = skipValue(body, i); !ok {
				return badJSON(end, "an item is expected")
			}
			err = b.addItem(body[i:end:end], slowNote)
		}
		if err != nil {
			return err
		}
		switch i = skipSpace(body, end); {
		case i >= len(body):
			return badJSON(i, "the array does not end")
		case body[i] == ']':
			return checkEnd(body, i+1)
		case body[i] != ',':
			return badJSON(i, "a comma is expected after an item")
		}
		i = skipSpace(body, i+1)
	}
}

func checkEnd(b []byte, i int) error {
	if i = skipSpace(b, i); i < len(b) {
		return badJSON(i, "nothing may follow the array")
	}
	return nil
}

// eachLine adds to b every line of the body that is not blank.
func eachLine(body []byte, b *batch) error {
	for line := range bytes.Lines(body) {
		if line = bytes.Trim(line, " \t\r\n"); len(line) == 0 {
			continue
		}
		if err := b.addItem(line, decodeNote); err != nil {
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
			return badProto("", "the tag of a field is damaged")
		}
		if num != 1 || typ != protowire.BytesType {
			return invalid("unknown_field", fmt.Sprintf("#%d", num), "a batch can have only the field with number 1, notifications")
		}
		v, k := protowire.ConsumeBytes(body[n:])
		if k < 0 {
			return badProto(fmt.Sprintf("notifications[%d]", i), "the item ends too early")
		}
		if err := b.addItem(v, readNote); err != nil {
			return err
		}
		body = body[n+k:]
	}
	return nil
}
