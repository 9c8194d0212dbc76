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

// listBounds limits how much one call of List reads. The call needs memory for the rows of the
// chunks and for one body.
type listBounds struct {
	chunks    int   // bodies of chunks to read
	receivers int   // receivers to show to the caller
	bytes     int64 // bytes of bodies to read
	rows      int   // rows to read from the chunk tables of sealed segments
}

// defaultListBounds are the limits in use. A row has 40 bytes; reading 640 MB of rows takes about
// half a second.
var defaultListBounds = listBounds{chunks: 4096, receivers: 256 << 10, bytes: 64 << 20, rows: 16 << 20}

// maxLists is how many List calls may read at the same time. Further calls wait.
const maxLists = 2

// listPlace is a position in the order of List: newest request first, then the chunk with the
// lowest first index, then the receiver with the lowest index. This order does not change when
// segments are sealed or merged between two pages.
type listPlace struct {
	base         notify.Base
	first, index uint32
}

const (
	listVersion = 2              // a cursor of User begins with another byte
	listCursor  = 1 + 16 + 4 + 4 // length of a cursor: version, base, first, index
)

// lastBase sorts as if it were newer than every request.
var lastBase = notify.Base(bytes.Repeat([]byte{0xff}, len(notify.Base{})))

func (p *listPlace) cursor() engine.HistoryCursor {
	b := append(make([]byte, 0, listCursor), listVersion)
	b = binary.BigEndian.AppendUint32(append(b, p.base[:]...), p.first)
	return binary.BigEndian.AppendUint32(b, p.index)
}

func parseListCursor(c engine.HistoryCursor) (*listPlace, error) {
	if len(c) != listCursor || c[0] != listVersion {
		return nil, notify.Invalid("bad_cursor", "cursor", "this cursor is not from a list of the notifications of all users; pass the cursor of the previous page")
	}
	p := &listPlace{first: binary.BigEndian.Uint32(c[17:]), index: binary.BigEndian.Uint32(c[21:])}
	copy(p.base[:], c[1:])
	return p, nil
}

// List implements server.Lister. Like the method User, it may miss notifications that were
// accepted a moment ago or that are in a damaged file.
func (s *Store) List(ctx context.Context, q engine.ListQuery, fn func(*engine.Found) (bool, error)) (engine.HistoryCursor, error) {
	n := newestChunks{query: &q, limit: s.listBounds.chunks}
	if q.After != nil {
		var err error
		if n.after, err = parseListCursor(q.After); err != nil {
			return nil, err
		}
	}
	select {
	case s.listTokens <- struct{}{}:
		defer func() { <-s.listTokens }()
	case <-ctx.Done():
		return nil, notify.Unavailable("history", time.Second, ctx.Err())
	}
	l, err := s.gatherChunks(ctx, &n)
	defer l.release()
	if err != nil {
		return nil, err
	}
	return s.showChunks(ctx, l, &n, fn)
}

// showChunks reads the bodies of the gathered chunks and calls fn with their receivers. It
// returns the cursor of the next page, or nil at the end.
func (s *Store) showChunks(ctx context.Context, l *lookup, n *newestChunks, fn func(*engine.Found) (bool, error)) (engine.HistoryCursor, error) {
	last := listPlace{base: lastBase} // the last position that fn has got or that was skipped
	if n.after != nil {
		last = *n.after
	}
	shown, size, opened := 0, int64(0), false
	for i := range n.chunks {
		c := &n.chunks[i]
		if opened && c.base == n.chunks[i-1].base && c.first == n.chunks[i-1].first {
			// This is a second copy of the chunk. The request was repeated, or the segment was
			// found both as a tail and as a file.
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if size >= s.listBounds.bytes {
			return last.cursor(), nil
		}
		size += int64(c.size)
		var f engine.Found
		if opened = l.openChunk(c, &f); opened && (n.query.Want == nil || n.query.Want(&f.Envelope)) {
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
	if n.more {
		return last.cursor(), nil
	}
	return nil, nil
}

// gatherChunks finds the first chunks in the order of List, without reading a body. It reads every
// row of the tails and of the segments that may contain one of these chunks.
func (s *Store) gatherChunks(ctx context.Context, n *newestChunks) (*lookup, error) {
	l := s.beginLookup(func(p *partition, t *tail) (kept bool) {
		for i := len(t.rows) - 1; i >= 0; i-- { // newest first, so that most later rows need no change of the heap
			if n.wants(&t.rows[i]) {
				n.add(chunk{row: t.rows[i], part: p, tail: t})
				kept = true
			}
		}
		return kept
	})
	const block = 1024
	buf, rows := make([]byte, block*rowSize), 0
	for _, seg := range l.view.segs { // the segment with the youngest request first
		if seg.maxBase.Time().UnixMilli() < n.query.Since {
			break
		}
		if len(n.chunks) == n.limit && bytes.Compare(seg.maxBase[:], n.chunks[0].base[:]) < 0 {
			n.more = true
			break
		}
		if n.after != nil && bytes.Compare(seg.minBase[:], n.after.base[:]) > 0 || n.query.Until > 0 && seg.minBase.Time().UnixMilli() >= n.query.Until {
			continue
		}
		if rows += seg.meta.Chunks; rows > s.listBounds.rows {
			return l, notify.Invalid("list_too_wide", "until", fmt.Sprintf("the list would read more than %d rows of the history; choose a shorter period or one user, or read the archive", s.listBounds.rows))
		}
		for end := seg.meta.Chunks; end > 0; end -= block {
			if err := ctx.Err(); err != nil {
				return l, err
			}
			from := max(end-block, 0)
			if err := n.readRows(seg, buf[:(end-from)*rowSize], from); err != nil {
				l.noteDamage(seg, err)
				break
			}
		}
	}
	slices.SortFunc(n.chunks, func(a, b chunk) int { return compareRows(&a.row, &b.row) })
	return l, nil
}

// newestChunks keeps the first chunks of a list in a heap. The top of the heap is the last chunk in
// the order of List.
type newestChunks struct {
	query  *engine.ListQuery
	after  *listPlace // position after which the page begins; nil: the beginning
	limit  int
	chunks []chunk
	more   bool // there are more chunks than were kept
}

func (n *newestChunks) readRows(seg *segment, b []byte, from int) error {
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

// wants reports whether a row's chunk belongs to this page or a later page.
func (n *newestChunks) wants(r *row) bool {
	if p := n.after; p != nil {
		at := row{base: p.base, first: p.first}
		if c := compareRows(r, &at); c < 0 || c == 0 && r.last <= p.index {
			return false
		}
	}
	ms := r.base.Time().UnixMilli()
	return ms >= n.query.Since && (n.query.Until == 0 || ms < n.query.Until)
}

func (n *newestChunks) add(c chunk) {
	switch {
	case len(n.chunks) < n.limit:
		heap.Push(n, c)
	case compareRows(&c.row, &n.chunks[0].row) < 0:
		n.chunks[0], n.more = c, true
		heap.Fix(n, 0)
	default:
		n.more = true
	}
}

// compareRows compares two rows in the order of List.
func compareRows(a, b *row) int {
	if c := bytes.Compare(b.base[:], a.base[:]); c != 0 {
		return c
	}
	return cmp.Compare(a.first, b.first)
}

func (n *newestChunks) Len() int { return len(n.chunks) }
func (n *newestChunks) Less(i, j int) bool {
	return compareRows(&n.chunks[i].row, &n.chunks[j].row) > 0
}
func (n *newestChunks) Swap(i, j int) { n.chunks[i], n.chunks[j] = n.chunks[j], n.chunks[i] }
func (n *newestChunks) Push(x any)    { n.chunks = append(n.chunks, x.(chunk)) }
func (n *newestChunks) Pop() any      { panic("a page only grows") }
