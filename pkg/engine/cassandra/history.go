package cassandra

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// HistoryPart is one partition of one topic of the log.
type HistoryPart struct {
	Topic     string
	Partition int32
}

// HistoryConfig is the configuration of a History.
type HistoryConfig struct {
	// Barrier returns the current end offset of every partition of the log. The method Each
	// calls Barrier at its beginning. The method Find calls Barrier only if it has found
	// nothing. After Barrier returns, Each and Find wait until all records before these
	// offsets are in the history, no matter which process appends the records. If Barrier
	// is nil, Each and Find do not wait.
	Barrier func(ctx context.Context) (map[HistoryPart]int64, error)
	// MaxWait is how long Each and Find wait before they return KindUnavailable. The
	// default is 5 s.
	MaxWait time.Duration
}

// History implements history.Reader. It finds the notifications of a user and the receivers of a
// notification.
type History struct {
	s   *Store
	cfg HistoryConfig
}

const monthMs = 30 * engine.DayMs

// chunkRef is a row of notification_chunks.
type chunkRef struct {
	chunk       notify.Chunk
	first, last uint32
	fan         bool
	topic       string
	part        int32
	offset      int64
	data        []byte // nil: the data is in notification_content
}

const chunkColumns = `part, block, first, last, fan, topic, log_part, log_offset, data`

// scanRef reads one row. It stores the first columns in the variables to which the arguments
// leading point, and then the columns of chunkColumns in r. It returns false if there is no more
// row.
func scanRef(scan func(...any) bool, base notify.Base, r *chunkRef, leading ...any) bool {
	var part int
	var block, first, last int64
	*r = chunkRef{}
	ok := scan(append(leading, &part, &block, &first, &last, &r.fan, &r.topic, &r.part, &r.offset, &r.data)...)
	r.chunk = notify.Chunk{Base: base, Partition: uint16(part), Block: uint32(block)}
	r.first, r.last = uint32(first), uint32(last)
	return ok
}

// chunkRefs returns the chunks of a request, ordered by partition and block.
func (h *History) chunkRefs(ctx context.Context, base notify.Base) (out []chunkRef, err error) {
	p := shardOfMinute(base)
	err = h.s.rows(ctx, func(scan func(...any) bool) error {
		for r := (chunkRef{}); scanRef(scan, base, &r); {
			out = append(out, r)
		}
		return nil
	}, `SELECT `+chunkColumns+` FROM notification_chunks WHERE minute = ? AND shard = ? AND base = ?`, p.minute, p.shard, base[:])
	return out, err
}

// readContent reads the content of a chunk into f. The result ok is false if the retention
// of the content is over.
func (h *History) readContent(ctx context.Context, r *chunkRef, f *engine.Found) (ok bool, err error) {
	v, c := r.data, r.chunk
	if v == nil {
		ok, err = h.s.get(ctx, `SELECT data FROM notification_content WHERE base = ? AND part = ? AND block = ?`, []any{c.Base[:], int(c.Partition), int64(c.Block)}, &v)
		if err != nil || !ok {
			return false, err
		}
	}
	*f = engine.Found{Topic: r.topic, LogPart: r.part, Offset: r.offset}
	err = notify.DecodeEnvelope(v, &f.Envelope)
	if errors.Is(err, notify.ErrNewer) {
		return false, err
	}
	if err != nil || f.Envelope.Chunk != c {
		return false, corrupt(fmt.Sprintf("the content of chunk %v", c))
	}
	return true, nil
}

// Find implements history.Reader.
func (h *History) Find(ctx context.Context, id notify.ID) (engine.Found, error) {
	f, err := h.find(ctx, id)
	if h.cfg.Barrier == nil || notify.KindOf(err) != notify.KindNotFound {
		return f, err
	}
	if err := h.waitForBarrier(ctx); err != nil {
		return engine.Found{}, err
	}
	return h.find(ctx, id)
}

func (h *History) find(ctx context.Context, id notify.ID) (engine.Found, error) {
	refs, err := h.chunkRefs(ctx, id.Base)
	if err != nil {
		return engine.Found{}, err
	}
	for i := range refs {
		if refs[i].fan != id.FanOut || id.Index < refs[i].first || id.Index > refs[i].last {
			continue
		}
		var f engine.Found
		if ok, err := h.readContent(ctx, &refs[i], &f); err != nil {
			return engine.Found{}, err
		} else if !ok {
			continue
		}
		rd, r := notify.ReadReceivers(f.Envelope.Receivers), notify.Receiver{}
		for pos := uint32(0); rd.Next(&r) && r.Index <= id.Index; pos++ {
			if r.Index == id.Index {
				f.ID, f.Pos, f.User, f.Address = id, pos, r.User, r.Address
				return f, nil
			}
		}
	}
	return engine.Found{}, h.missingError(id.Base)
}

// missingError returns the error for a request that was not found. The error is KindGone if
// the request is older than the retention, otherwise KindNotFound.
func (h *History) missingError(base notify.Base) error {
	if time.Since(base.Time()) > h.s.cfg.StatusTTL {
		return &notify.Error{Kind: notify.KindGone, Code: "notification_gone", Msg: "the history of this notification has passed its retention"}
	}
	return notify.NotFound("notification")
}

// waitForBarrier waits until every record that is in the log now is also in the history.
func (h *History) waitForBarrier(ctx context.Context) error {
	if h.cfg.Barrier == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, h.cfg.MaxWait)
	defer stop()
	ends, err := h.cfg.Barrier(ctx)
	if err != nil {
		return translate(err)
	}
	for {
		have, err := h.s.HistoryOffsets(ctx)
		if err != nil {
			return err
		}
		behind := false
		for p, end := range ends {
			behind = behind || have[p] < end
		}
		if !behind {
			return nil
		}
		if !notify.Sleep(ctx, 50*time.Millisecond) {
			return translate(ctx.Err())
		}
	}
}

// Each implements history.Reader. It first calls waitForBarrier, because it must not return
// only some of the receivers of a request.
func (h *History) Each(ctx context.Context, base notify.Base, fn func(*engine.Found) error) error {
	if err := h.waitForBarrier(ctx); err != nil {
		return err
	}
	refs, err := h.chunkRefs(ctx, base)
	if err != nil {
		return err
	}
	n := 0
	for i := range refs {
		var f engine.Found
		if ok, err := h.readContent(ctx, &refs[i], &f); err != nil {
			return err
		} else if !ok {
			continue
		}
		n++
		rd, r := notify.ReadReceivers(f.Envelope.Receivers), notify.Receiver{}
		for pos := uint32(0); rd.Next(&r); pos++ {
			f.ID, f.Pos, f.User, f.Address = f.Envelope.ID(r.Index), pos, r.User, r.Address
			if err := fn(&f); err != nil {
				return err
			}
		}
	}
	if n == 0 {
		return h.missingError(base)
	}
	return nil
}

const cursorVersion = 1

// lastBase is the greatest base.
var lastBase = notify.Base{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func historyCursor(user string, released int64, base notify.Base, index uint32) engine.HistoryCursor {
	b := binary.BigEndian.AppendUint64([]byte{cursorVersion}, notify.HashUser([]byte(user)))
	b = binary.BigEndian.AppendUint64(b, uint64(released))
	return binary.BigEndian.AppendUint32(append(b, base[:]...), index)
}

// User implements history.Reader. A page may contain fewer notifications than Limit
// although more notifications exist. The cursor is nil only at the end.
func (h *History) User(ctx context.Context, q engine.HistoryQuery) ([]engine.Found, engine.HistoryCursor, error) {
	if q.Limit < 1 || q.Limit > 1000 {
		return nil, nil, notify.Invalid("bad_limit", "limit", fmt.Sprintf("a page must have 1 to 1,000 notifications, not %d", q.Limit))
	}
	left, before, index := int64(math.MaxInt64), lastBase, int64(1)<<32
	if q.Before != nil {
		c := q.Before
		if len(c) != 1+8+8+16+4 || c[0] != cursorVersion || binary.BigEndian.Uint64(c[1:]) != notify.HashUser([]byte(q.User)) {
			return nil, nil, notify.Invalid("bad_cursor", "cursor", "this cursor is not from a list of this user; pass the cursor of the previous page")
		}
		left, before, index = int64(binary.BigEndian.Uint64(c[9:])), notify.Base(c[17:33]), int64(binary.BigEndian.Uint32(c[33:]))
	}
	type place struct {
		released   int64
		base       notify.Base
		index, pos int64
		part       int
		block      int64
		caller     string
	}
	var page []place
	looked, more := 0, false
	var last place
	// The clock of another machine may be ahead of the clock of this machine. So a base may
	// be in the next month.
	now := time.Now().UnixMilli()
	newest := min(now/monthMs+1, left/monthMs)
	oldest := (now - h.s.cfg.StatusTTL.Milliseconds()) / monthMs
	for month := newest; month >= oldest && !more; month-- {
		err := h.s.rows(ctx, func(scan func(...any) bool) error {
			for {
				var p place
				var b []byte
				if !scan(&p.released, &b, &p.index, &p.caller, &p.part, &p.block, &p.pos) {
					return nil
				}
				if len(b) != len(p.base) {
					return corrupt("a row of the table notifications")
				}
				p.base = notify.Base(b)
				if q.Caller == "" || p.caller == q.Caller {
					if len(page) == q.Limit {
						more = true
						return nil
					}
					page = append(page, p)
				}
				// Limit the number of rows that are read for one page, because most rows
				// may belong to other callers.
				if last, looked = p, looked+1; looked == 20*pageSize {
					more = true
					return nil
				}
			}
		}, `SELECT released, base, idx, caller, part, block, pos FROM notifications WHERE user_id = ? AND month = ? AND (released, base, idx) < (?, ?, ?)`, []byte(q.User), month, left, before[:], index)
		if err != nil {
			return nil, nil, err
		}
	}
	found, have := make([]engine.Found, len(page)), make([]bool, len(page))
	err := parallel(len(page), func(i int) error {
		p := &page[i]
		r, in := chunkRef{chunk: notify.Chunk{Base: p.base, Partition: uint16(p.part), Block: uint32(p.block)}}, shardOfMinute(p.base)
		ok, err := h.s.get(ctx, `SELECT topic, log_part, log_offset, data FROM notification_chunks WHERE minute = ? AND shard = ? AND base = ? AND part = ? AND block = ?`,
			[]any{in.minute, in.shard, p.base[:], p.part, p.block}, &r.topic, &r.part, &r.offset, &r.data)
		if err != nil || !ok {
			return err
		}
		f := &found[i]
		if ok, err := h.readContent(ctx, &r, f); err != nil || !ok {
			return err
		}
		rd, x := notify.ReadReceivers(f.Envelope.Receivers), notify.Receiver{}
		rd.Skip(uint32(p.pos))
		if !rd.Next(&x) || string(x.User) != q.User || int64(x.Index) != p.index {
			return corrupt(fmt.Sprintf("the content of chunk %v", r.chunk))
		}
		f.ID, f.Pos, f.User, f.Address = f.Envelope.ID(x.Index), uint32(p.pos), x.User, x.Address
		have[i] = true
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	out := found[:0]
	for i := range found {
		if have[i] { // false if the retention has just ended
			out = append(out, found[i])
		}
	}
	if !more {
		return out, nil, nil
	}
	return out, historyCursor(q.User, last.released, last.base, uint32(last.index)), nil
}
