package intake

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"net/http"
	"slices"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/oklog/ulid/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Single answers POST /v1/notifications with status 201, the id and the status ACCEPTED or
// SCHEDULED. Its errors are *notify.Error. If it returns an error, nothing was stored, with one
// exception: after KindUnavailable the notification may be stored.
func (s *Service) Single(ctx context.Context, m request.Meta, body []byte) (a request.Answer, err error) {
	end := s.cfg.Events.beginRequest(m, len(body))
	defer func() { end(err) }()
	if err := m.Check(); err != nil {
		return request.Answer{}, err
	}
	if request.Media(m.ContentType) != request.JSON {
		return request.Answer{}, request.Unsupported(request.JSON)
	}
	key := engine.IdemKey{Caller: m.Caller, Route: m.Route, Key: m.Key}
	return s.once.Do(ctx, &m, key, body, func(l request.Basis) (request.Plan, error) {
		n := new(note)
		if err := decodeNote(body, n); err != nil {
			return nil, err
		}
		return s.planSingle(&m, n, l)
	})
}

func (s *Service) planSingle(m *request.Meta, n *note, l request.Basis) (*storePlan, error) {
	if err := s.cfg.Admission.Single(n.category); err != nil {
		return nil, err
	}
	if err := s.admitNote(n, m, l.Accepted, switchesFor(s, l)); err != nil {
		return nil, err
	}
	fire := l.Fire
	if !l.Resumed {
		fire = s.rules.fireTime(&n.terms, l.Base, l.Accepted)
	}
	topic := n.lane().Topic()
	parts, err := s.partitions(topic, l.Base, l.Partitions)
	if err != nil {
		return nil, err
	}
	w := s.notes.Get().(*noteWriter)
	p := &storePlan{s: s, m: m, basis: l, fire: fire, parts: parts, block: 1}
	p.done = func() { s.poolWriter(w, p) }
	w.lendBuffers(p, m, l.Accepted, 0, 1)
	w.addNote(p, s.cfg.TimerKind, n, l.Base, fire, topic, parts)
	p.answer = func(failed *failures) (request.Answer, bool, error) {
		c, state := classOf(n.category), notify.Accepted
		if fire != 0 {
			c, state = classLater, notify.Scheduled
		}
		if failed[c] != nil {
			return request.Answer{}, false, failed[c]
		}
		s.cfg.Events.accepted(n.channel, n.category, m.Caller, 1)
		return request.Answer{Status: http.StatusCreated, Body: appendResult(nil, l.Base, state)}, true, nil
	}
	return p, nil
}

// appendResult appends the answer for one notification to b.
func appendResult(b []byte, base notify.Base, state notify.State) []byte {
	b = append(b, `{"notification_id":"ntf_`...)
	n := len(b)
	b = slices.Grow(b, ulid.EncodedSize)[:n+ulid.EncodedSize]
	_ = ulid.ULID(base).MarshalTextTo(b[n:]) // fails only for another length
	b = append(b, `","status":"`...)
	b = append(b, state.String()...)
	return append(b, `"}`...)
}

func (s *Service) admitNote(n *note, m *request.Meta, now int64, off switches) error {
	if err := m.Load.Admit(n.channel.String(), 1); err != nil {
		return err
	}
	if why := checkReceiver(n.channel, m.Users, n.user, n.address, n.vars); why.code != "" {
		return why.err("to.")
	}
	if err := s.rules.admit(&n.terms, now, off); err != nil {
		return err
	}
	if c := &n.content; !mayNeed(c.Body) && !mayNeed(c.Title) && !mayNeed(c.HTML) {
		return nil // most texts use no variables; without this return the full check took 2% of a batch's time
	}
	var needs textVariables
	if needs.readTexts(n.channel, &n.content); len(needs.order) == 0 {
		return nil
	}
	if why := needs.check(n.vars); why.given() {
		return why.err("to.")
	}
	return nil
}

// partitions returns the number of partitions of a topic over which the request with this base is
// spread. The parameter frozen is the number that the reservation of a resumed request contains.
// If it is not 0, partitions returns it.
func (s *Service) partitions(topic string, base notify.Base, frozen uint16) (uint16, error) {
	if frozen != 0 {
		return frozen, nil
	}
	n := s.stores.Partitions(topic, base)
	if n < 1 || n > 1<<16-1 {
		return 0, notify.Unavailable("log", retryUnavailable, nil)
	}
	return uint16(n), nil
}

// partitionsSum returns a checksum of the partition counts of all lanes for this base.
func (s *Service) partitionsSum(base notify.Base) uint32 {
	var b []byte
	for _, lane := range notify.Lanes() {
		b = binary.AppendUvarint(b, uint64(s.stores.Partitions(lane.Topic(), base)))
	}
	return crc32.ChecksumIEEE(b) | 1 // never 0
}

// noteWriter makes the records or timers of notifications for one receiver. During a request it
// never overwrites a byte of its buffer. So earlier records stay valid when the buffer grows. The
// next request reuses the buffer.
type noteWriter struct {
	env     notify.Envelope // on the heap: clearing it on the stack took 30 ns
	buf     []byte
	col     notify.ReceiverWriter
	recs    []log.Record
	classes []storeClass
	items   []batchItem
}

// lendBuffers lets p, the plan for the request m, use the writer's buffers. It makes room for
// about as many items and bytes as the parameters items and body say. Without that room, the
// buffers grew step by step and were copied twice, which took 4% of the time of a batch. The
// parameter accepted is the accept time in ms since 1970.
func (w *noteWriter) lendBuffers(p *storePlan, m *request.Meta, accepted int64, body, items int) {
	w.env = notify.Envelope{Accepted: accepted, Caller: m.Caller, Trace: m.Trace, TraceState: m.TraceState, Count: 1}
	w.buf = slices.Grow(w.buf[:0], body)
	w.recs, w.classes = slices.Grow(w.recs[:0], items), slices.Grow(w.classes[:0], items)
	w.items = slices.Grow(w.items[:0], items)
	p.recs, p.classes = w.recs[:0], w.classes[:0]
}

// poolWriter puts a writer back for the next request, unless its buffer grew very large.
func (s *Service) poolWriter(w *noteWriter, p *storePlan) {
	w.recs, w.classes = p.recs, p.classes // they may have grown
	const most = 4 << 20
	w.env = notify.Envelope{} // env refers to the body
	if cap(w.buf) <= most {
		s.notes.Put(w)
	}
}

func (w *noteWriter) addNote(p *storePlan, kind uint8, n *note, base notify.Base, fire int64, topic string, parts uint16) {
	w.col.Reset()
	w.col.Append(notify.Receiver{User: n.user, Address: n.address, Variables: n.vars})
	part := notify.Partition(n.user, int(parts))
	e := &w.env // set only the fields that differ between notifications; lendBuffers has set the others
	e.Chunk.Base, e.Chunk.Partition = base, uint16(part)
	e.Channel, e.Category, e.Expires, e.NotBefore = n.channel, n.category, n.expires, fire
	at := len(w.buf)
	w.buf = notify.AppendEnvelopeOf(w.buf, e, &n.content, w.col.Bytes())
	mid := len(w.buf)
	if fire != 0 {
		p.timers = append(p.timers, engine.Timer{
			FireAt: fire, ID: e.Chunk.TimerID(0), Kind: kind, Target: topic, Payload: w.buf[at:mid:mid],
			Head: base, Weight: 1,
		})
		p.schedules = append(p.schedules, engine.Schedule{
			Base: base, Caller: e.Caller, User: string(n.user), Channel: n.channel, Category: n.category, FireAt: fire,
			Created: e.Accepted, Expires: n.expires, Partition: uint16(part), Receivers: 1, Accepted: 1,
		})
		return
	}
	w.buf = append(w.buf, n.user...) // copy the user: the key may outlive the request, but the body may not
	p.recs = append(p.recs, log.Record{
		Topic: topic, Partition: part, Key: w.buf[mid:len(w.buf):len(w.buf)], Value: w.buf[at:mid:mid],
	})
	p.classes = append(p.classes, classOf(n.category))
}
