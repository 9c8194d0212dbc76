package history

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// maxBodies is how many bodies one page reads before it returns what it has,
// for users most of whose notifications are another caller's.
const maxBodies = 4096

// position is a place in the order of a listing: newest request first, and in
// it the highest index. Ids begin with their time, so their order is the
// order in which requests were accepted.
type position struct {
	base  notify.Base
	index uint32
}

const cursorVersion = 1

func (p position) cursor(user uint64) engine.HistoryCursor {
	b := binary.BigEndian.AppendUint64([]byte{cursorVersion}, user)
	return binary.BigEndian.AppendUint32(append(b, p.base[:]...), p.index)
}

func parseCursor(c engine.HistoryCursor, user uint64) (p position, err error) {
	if len(c) != 1+8+16+4 || c[0] != cursorVersion || binary.BigEndian.Uint64(c[1:]) != user {
		return p, notify.Invalid("bad_cursor", "cursor", "this cursor is not from a listing of this user")
	}
	copy(p.base[:], c[9:])
	p.index = binary.BigEndian.Uint32(c[25:])
	return p, nil
}

// User implements Reader. A page may hold fewer than Limit although
// there is more; the cursor says so. What was accepted in the last moments may
// be missing: there is no barrier here.
func (s *Store) User(ctx context.Context, q engine.HistoryQuery) ([]engine.Found, engine.HistoryCursor, error) {
	if q.Limit < 1 || q.Limit > 1000 {
		return nil, nil, notify.Invalid("bad_limit", "limit", "a page holds 1 to 1000 notifications")
	}
	h := notify.HashUser([]byte(q.User))
	var before *position
	if q.Before != nil {
		p, err := parseCursor(q.Before, h)
		if err != nil {
			return nil, nil, err
		}
		before = &p
	}
	w := s.walk(h, before)
	defer w.end()
	var page []engine.Found
	for bodies := 0; ; {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		group := w.next()
		if group == nil {
			return page, nil, nil
		}
		for _, f := range w.resolve(group, q) {
			if len(page) == q.Limit {
				last := &page[len(page)-1]
				return page, position{last.ID.Base, last.ID.Index}.cursor(h), nil
			}
			page = append(page, f)
		}
		if bodies += len(group); bodies >= maxBodies {
			return page, position{group[0].base, 0}.cursor(h), nil
		}
	}
}

// walk gives the candidates of a user, grouped by base, newest first. It opens
// a segment only when nothing at hand is surely newer.
type walk struct {
	*lookup
	hash   uint64
	before *position
	cands  byBase
	segs   []*segment // not opened yet, by youngest base
}

func (s *Store) walk(h uint64, before *position) *walk {
	w := &walk{hash: h, before: before}
	var ords []uint32
	w.lookup = s.begin(func(p *part, t *tail) bool {
		n := len(w.cands)
		ords = t.users.find(ords[:0], h)
		for _, o := range ords {
			w.add(chunk{row: *t.rowOf(o), ordinal: o, part: p, tail: t})
		}
		return len(w.cands) > n
	})
	heap.Init(&w.cands)
	w.segs = w.view.segs
	return w
}

// add keeps a candidate that is not before the page.
func (w *walk) add(c chunk) {
	if w.before == nil || bytes.Compare(c.base[:], w.before.base[:]) <= 0 {
		w.cands = append(w.cands, c)
	}
}

// next returns all candidates of the next base, or nil at the end.
func (w *walk) next() []chunk {
	for len(w.segs) > 0 && (len(w.cands) == 0 || bytes.Compare(w.cands[0].base[:], w.segs[0].maxBase[:]) <= 0) {
		seg := w.segs[0]
		w.segs = w.segs[1:]
		if w.before != nil && bytes.Compare(seg.minBase[:], w.before.base[:]) > 0 {
			continue
		}
		if err := w.search(seg); err != nil {
			w.note(seg, err)
		}
		heap.Init(&w.cands)
	}
	if len(w.cands) == 0 {
		return nil
	}
	base := w.cands[0].base
	var group []chunk
	for len(w.cands) > 0 && w.cands[0].base == base {
		group = append(group, heap.Pop(&w.cands).(chunk))
	}
	return group
}

func (w *walk) search(seg *segment) (err error) {
	w.ords, w.buf, err = seg.users.find(seg.blob, w.buf, w.ords[:0], w.hash)
	for _, o := range w.ords {
		if err != nil {
			break
		}
		c := chunk{ordinal: o, seg: seg}
		if w.buf, err = seg.rowOf(o, w.buf, &c.row); err == nil {
			w.add(c)
		}
	}
	return err
}

// resolve reads the bodies of a group and returns what is the user's, highest
// index first. A hash that only looked like the user's is no damage; the same
// receiver twice is a chunk that lies in the log twice, or a segment met as
// tail and as file.
func (w *walk) resolve(group []chunk, q engine.HistoryQuery) []engine.Found {
	var fs []engine.Found
	for i := range group {
		c := &group[i]
		var f engine.Found
		if !w.open(c, &f) || q.Caller != "" && f.Envelope.Caller != q.Caller {
			continue
		}
		pos := c.ordinal - c.start
		r, ok := receiverAt(f.Envelope.Receivers, pos)
		if !ok {
			if c.seg != nil {
				w.note(c.seg, fmt.Errorf("%w: position %d of %d receivers", errDamaged, pos, f.Envelope.Count))
			}
			continue
		}
		if string(r.User) != q.User || w.before != nil && c.base == w.before.base && r.Index >= w.before.index {
			continue
		}
		f.ID, f.Pos, f.User, f.Address = f.Envelope.ID(r.Index), pos, r.User, r.Address
		fs = append(fs, f)
	}
	sort.SliceStable(fs, func(i, j int) bool { return fs[i].ID.Index > fs[j].ID.Index })
	n := 0
	for i := range fs {
		if i == 0 || fs[i].ID != fs[i-1].ID {
			fs[n] = fs[i]
			n++
		}
	}
	return fs[:n]
}

// receiverAt returns the receiver at a position of a column that has been
// checked. Skipping is most of what a hit costs behind the read, so it does not
// look at what it skips.
func receiverAt(column []byte, pos uint32) (r notify.Receiver, ok bool) {
	index := uint64(0)
	for n := uint32(0); n < pos; n++ {
		if len(column) >= 2 && column[0] < 0x80 && column[1] < 0x80 && column[1]&3 == 0 {
			index += uint64(column[0]) + 1
			column = column[2+column[1]>>2:]
			continue
		}
		rd := notify.ReadReceivers(column)
		if !rd.Next(&r) {
			return r, false
		}
		index += uint64(r.Index) + 1
		column = rd.Rest()
	}
	rd := notify.ReadReceivers(column)
	ok = rd.Next(&r)
	r.Index += uint32(index)
	return r, ok
}

// byBase is a heap, newest base on top.
type byBase []chunk

func (b byBase) Len() int           { return len(b) }
func (b byBase) Less(i, j int) bool { return bytes.Compare(b[i].base[:], b[j].base[:]) > 0 }
func (b byBase) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }
func (b *byBase) Push(x any)        { *b = append(*b, x.(chunk)) }
func (b *byBase) Pop() any {
	old := *b
	c := old[len(old)-1]
	*b = old[:len(old)-1]
	return c
}
