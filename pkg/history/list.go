package history

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// listBounds is how much one List reads. Its memory is that of the chunks' rows and
// of one body.
type listBounds struct {
	chunks    int   // how many bodies of chunks are read
	receivers int   // how many the caller is shown
	bytes     int64 // of bodies
	rows      int   // of the chunk tables of sealed segments
}

// Rows are 40 bytes: 640 MB of them are read in about half a second.
var defaultListBounds = listBounds{chunks: 4096, receivers: 256 << 10, bytes: 64 << 20, rows: 16 << 20}

// maxLists is how many List calls read at a time: the others wait.
const maxLists = 2

// listPlace is a place in the order of List: the newest request first, then the chunk
// with the lowest first index, then the receiver with the lowest index. Segments that
// are sealed or merged between two pages leave this order as it is.
type listPlace struct {
	base         notify.Base
	first, index uint32
}

const (
	listVersion = 2 // no cursor of User begins so
	listCursor  = 1 + 16 + 4 + 4
)

// lastBase is newer than every request.
var lastBase = notify.Base(bytes.Repeat([]byte{0xff}, len(notify.Base{})))

func (p *listPlace) cursor() engine.HistoryCursor {
	b := append(make([]byte, 0, listCursor), listVersion)
	b = binary.BigEndian.AppendUint32(append(b, p.base[:]...), p.first)
	return binary.BigEndian.AppendUint32(b, p.index)
}

func parseListCursor(c engine.HistoryCursor) (*listPlace, error) {
	if len(c) != listCursor || c[0] != listVersion {
		return nil, notify.Invalid("bad_cursor", "cursor", "this cursor is not from a list without a user")
	}
	p := &listPlace{first: binary.BigEndian.Uint32(c[17:]), index: binary.BigEndian.Uint32(c[21:])}
	copy(p.base[:], c[1:])
	return p, nil
}

// List implements server.Lister. As with User, what was accepted in the last
// moments and what is damaged may be missing.
func (s *Store) List(ctx context.Context, q engine.ListQuery, fn func(*engine.Found) (bool, error)) (engine.HistoryCursor, error) {
	n := newest{q: &q, most: s.listBounds.chunks}
	if q.After != nil {
		var err error
		if n.after, err = parseListCursor(q.After); err != nil {
			return nil, err
		}
	}
	select {
	case s.lists <- struct{}{}:
		defer func() { <-s.lists }()
	case <-ctx.Done():
		return nil, notify.Unavailable("history", time.Second, ctx.Err())
	}
	l, err := s.gather(ctx, &n)
	defer l.end()
	if err != nil {
		return nil, err
	}
	return s.show(ctx, l, &n, fn)
}

// show reads the bodies of the gathered chunks and calls fn with their receivers.
func (s *Store) show(ctx context.Context, l *lookup, n *newest, fn func(*engine.Found) (bool, error)) (engine.HistoryCursor, error) {
	last := listPlace{base: lastBase} // everything up to here was shown
	if n.after != nil {
		last = *n.after
	}
	shown, size, opened := 0, int64(0), false
	for i := range n.chunks {
		c := &n.chunks[i]
		if opened && c.base == n.chunks[i-1].base && c.first == n.chunks[i-1].first {
			continue // a copy: from a repeated request, or a segment met as tail and as file
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if size >= s.listBounds.bytes {
			return last.cursor(), nil
		}
		size += int64(c.size)
		var f engine.Found
		if opened = l.open(c, &f); opened && (n.q.Want == nil || n.q.Want(&f.Envelope)) {
			from := uint64(0)
			if p := n.after; p != nil && p.base == c.base && p.first == c.first {
				from = uint64(p.index) + 1
			}
			rd, r := notify.ReadReceivers(f.Envelope.Receivers), notify.Receiver{}
			for pos := uint32(0); rd.Next(&r); pos++ {
				if uint64(r.Index) < from {
					continue
				}
				if shown == s.listBounds.receivers {
					return last.cursor(), nil
				}
				shown++
				f.ID, f.Pos, f.User, f.Address = f.Envelope.ID(r.Index), pos, r.User, r.Address
				more, err := fn(&f)
				if err != nil {
					return nil, err
				}
				if !more {
					return last.cursor(), nil
				}
				last = listPlace{c.base, c.first, r.Index}
			}
		}
		last = listPlace{c.base, c.first, c.last}
	}
	if n.left {
		return last.cursor(), nil
	}
	return nil, nil
}

// gather finds the first chunks in the order of List, without reading a body. It
// looks at every row of the tails and of the segments that may hold one of them.
func (s *Store) gather(ctx context.Context, n *newest) (*lookup, error) {
	l := s.begin(func(p *part, t *tail) (kept bool) {
		for i := len(t.rows) - 1; i >= 0; i-- { // most often the newest first
			if n.wants(&t.rows[i]) {
				n.add(chunk{row: t.rows[i], part: p, tail: t})
				kept = true
			}
		}
		return kept
	})
	const block = 1024
	buf, rows := make([]byte, block*rowSize), 0
	for _, seg := range l.view.segs { // by youngest request
		if seg.maxBase.Time().UnixMilli() < n.q.Since {
			break
		}
		if len(n.chunks) == n.most && bytes.Compare(seg.maxBase[:], n.chunks[0].base[:]) < 0 {
			n.left = true
			break
		}
		if n.after != nil && bytes.Compare(seg.minBase[:], n.after.base[:]) > 0 || n.q.Until > 0 && seg.minBase.Time().UnixMilli() >= n.q.Until {
			continue
		}
		if rows += seg.meta.Chunks; rows > s.listBounds.rows {
			return l, notify.Invalid("list_too_wide", "until", fmt.Sprintf("the notifications of this time lie among more than %d others; name a user, or read the archive", s.listBounds.rows))
		}
		for end := seg.meta.Chunks; end > 0; end -= block {
			if err := ctx.Err(); err != nil {
				return l, err
			}
			from := max(end-block, 0)
			if err := n.readRows(seg, buf[:(end-from)*rowSize], from); err != nil {
				l.note(seg, err)
				break
			}
		}
	}
	slices.SortFunc(n.chunks, func(a, b chunk) int { return compareRows(&a.row, &b.row) })
	return l, nil
}

// newest keeps the first chunks of a list: a heap, the last of them on top.
type newest struct {
	q      *engine.ListQuery
	after  *listPlace // nil: from the beginning
	most   int
	chunks []chunk
	left   bool // there are more than were kept
}

func (n *newest) readRows(seg *segment, b []byte, from int) error {
	if err := readFull(seg.blob, b, seg.meta.Rows.Off+int64(from)*rowSize); err != nil {
		return err
	}
	for at := len(b) - rowSize; at >= 0; at -= rowSize {
		c := chunk{seg: seg}
		decodeRow(b[at:], &c.row)
		if err := seg.checkRow(&c.row); err != nil {
			return err
		}
		if n.wants(&c.row) {
			n.add(c)
		}
	}
	return nil
}

// wants reports whether a row's chunk is on this page or behind it.
func (n *newest) wants(r *row) bool {
	if p := n.after; p != nil {
		at := row{base: p.base, first: p.first}
		if c := compareRows(r, &at); c < 0 || c == 0 && r.last <= p.index {
			return false
		}
	}
	ms := r.base.Time().UnixMilli()
	return ms >= n.q.Since && (n.q.Until == 0 || ms < n.q.Until)
}

func (n *newest) add(c chunk) {
	switch {
	case len(n.chunks) < n.most:
		heap.Push(n, c)
	case compareRows(&c.row, &n.chunks[0].row) < 0:
		n.chunks[0], n.left = c, true
		heap.Fix(n, 0)
	default:
		n.left = true
	}
}

// compareRows is the order of List.
func compareRows(a, b *row) int {
	if c := bytes.Compare(b.base[:], a.base[:]); c != 0 {
		return c
	}
	return cmp.Compare(a.first, b.first)
}

func (n *newest) Len() int           { return len(n.chunks) }
func (n *newest) Less(i, j int) bool { return compareRows(&n.chunks[i].row, &n.chunks[j].row) > 0 }
func (n *newest) Swap(i, j int)      { n.chunks[i], n.chunks[j] = n.chunks[j], n.chunks[i] }
func (n *newest) Push(x any)         { n.chunks = append(n.chunks, x.(chunk)) }
func (n *newest) Pop() any           { panic("a page only grows") }
