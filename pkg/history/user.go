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

// maxBodies is the number of bodies after which a page ends, even if the page is not full. It
// matters when most of a user's notifications belong to other callers.
const maxBodies = 4096

// userPlace is a position in the order of a user's list: newest request first, and within a request
// the highest index first. Bases begin with their time, so their order is the order in which
// requests were accepted.
type userPlace struct {
	base  notify.Base
	index uint32
}

const cursorVersion = 1

func (p userPlace) cursor(user uint64) engine.HistoryCursor {
	b := binary.BigEndian.AppendUint64([]byte{cursorVersion}, user)
	return binary.BigEndian.AppendUint32(append(b, p.base[:]...), p.index)
}

func parseUserCursor(c engine.HistoryCursor, user uint64) (p userPlace, err error) {
	if len(c) != 1+8+16+4 || c[0] != cursorVersion || binary.BigEndian.Uint64(c[1:]) != user {
		return p, notify.Invalid("bad_cursor", "cursor", "this cursor is not from a list of this user; pass the cursor of the previous page")
	}
	copy(p.base[:], c[9:])
	p.index = binary.BigEndian.Uint32(c[25:])
	return p, nil
}

// User implements Reader. A page may contain fewer than Limit notifications although there are
// more; then the cursor is not nil. Notifications that were accepted a moment ago may be missing,
// because User does not wait for the records at the end of the log.
func (s *Store) User(ctx context.Context, q engine.HistoryQuery) ([]engine.Found, engine.HistoryCursor, error) {
	if q.Limit < 1 || q.Limit > 1000 {
		return nil, nil, notify.Invalid("bad_limit", "limit", "must be from 1 to 1000 notifications")
	}
	h := notify.HashUser([]byte(q.User))
	var before *userPlace
	if q.Before != nil {
		p, err := parseUserCursor(q.Before, h)
		if err != nil {
			return nil, nil, err
		}
		before = &p
	}
	w := s.walkUser(h, before)
	defer w.release()
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
				return page, userPlace{last.ID.Base, last.ID.Index}.cursor(h), nil
			}
			page = append(page, f)
		}
		if bodies += len(group); bodies >= maxBodies {
			return page, userPlace{group[0].base, 0}.cursor(h), nil
		}
	}
}

// userWalk iterates over the candidates of a user, grouped by base, newest first. It opens a
// segment only if the segment may contain a newer candidate than the candidates found so far.
type userWalk struct {
	*lookup
	hash    uint64
	pageEnd *userPlace
	cands   byBase
	segs    []*segment // not opened yet; the segment with the youngest base is first
}

func (s *Store) walkUser(h uint64, before *userPlace) *userWalk {
	w := &userWalk{hash: h, pageEnd: before}
	var ords []uint32
	w.lookup = s.beginLookup(func(p *partition, t *tail) bool {
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

// add keeps a candidate if it may belong to this page or a later page.
func (w *userWalk) add(c chunk) {
	if w.pageEnd == nil || bytes.Compare(c.base[:], w.pageEnd.base[:]) <= 0 {
		w.cands = append(w.cands, c)
	}
}

// next returns all candidates of the next base, or nil at the end.
func (w *userWalk) next() []chunk {
	for len(w.segs) > 0 && (len(w.cands) == 0 || bytes.Compare(w.cands[0].base[:], w.segs[0].maxBase[:]) <= 0) {
		seg := w.segs[0]
		w.segs = w.segs[1:]
		if w.pageEnd != nil && bytes.Compare(seg.minBase[:], w.pageEnd.base[:]) > 0 {
			continue
		}
		if err := w.searchSegment(seg); err != nil {
			w.noteDamage(seg, err)
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

func (w *userWalk) searchSegment(seg *segment) (err error) {
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

// resolve reads the bodies of a group and returns the receivers that belong to the user, highest
// index first. A candidate may belong to another user whose hash has the same bits; that does not
// mean that the history is damaged. If a receiver occurs twice, resolve returns it once. This
// happens if its chunk is in the log twice, or if a segment was found both as a tail and as a
// file.
func (w *userWalk) resolve(group []chunk, q engine.HistoryQuery) []engine.Found {
	var fs []engine.Found
	for i := range group {
		c := &group[i]
		var f engine.Found
		if !w.openChunk(c, &f) || q.Caller != "" && f.Envelope.Caller != q.Caller {
			continue
		}
		pos := c.ordinal - c.start
		r, ok := receiverAt(f.Envelope.Receivers, pos)
		if !ok {
			if c.seg != nil {
				w.noteDamage(c.seg, fmt.Errorf("%w: the index points to position %d, but the chunk has %d receivers", errDamaged, pos, f.Envelope.Count))
			}
			continue
		}
		if string(r.User) != q.User || w.pageEnd != nil && c.base == w.pageEnd.base && r.Index >= w.pageEnd.index {
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

// receiverAt returns the receiver at a position of a column that was already checked. It skips most
// receivers before that position without decoding them, because this skipping takes most of the CPU
// time of a query after the body was read.
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

// byBase is a heap of candidates with the newest base on top.
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
