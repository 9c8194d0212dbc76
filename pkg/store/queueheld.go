package store

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/rows"
)

// receiptLen is the length of a receipt before its encoding, in bytes: instance of the queue, slot, seq
// and number of receives.
const receiptLen = 4 + 4 + 8 + 2

func (q *queue) receipt(t takenMessage) string {
	b := append(make([]byte, 0, receiptLen), q.instance[:]...)
	b = binary.BigEndian.AppendUint32(b, t.slot)
	b = binary.BigEndian.AppendUint64(b, t.seq)
	b = binary.BigEndian.AppendUint16(b, t.receives)
	return base64.RawURLEncoding.EncodeToString(b)
}

// writable returns an error if a write would fail now. Methods that write nothing in the store call
// it, so that they fail in the same cases as methods that write.
func (q *queue) writable(ctx context.Context) error {
	if ctx.Err() != nil {
		return contextEnded(ctx)
	}
	return q.rows.Err()
}

// heldMessage returns the message for which the receipt was given. m is nil if the receipt is no
// longer valid. The caller holds mu.
func (q *queue) heldMessage(receipt string, now int64) (slot uint32, m *queued) {
	var b [receiptLen + 3]byte
	if len(receipt) != base64.RawURLEncoding.EncodedLen(receiptLen) {
		return 0, nil
	}
	n, err := base64.RawURLEncoding.Decode(b[:], []byte(receipt))
	if err != nil || n != receiptLen || [4]byte(b[:4]) != q.instance {
		return 0, nil
	}
	slot = binary.BigEndian.Uint32(b[4:])
	m = q.index.messageAt(slot, binary.BigEndian.Uint64(b[8:]))
	if m == nil || m.receives != binary.BigEndian.Uint16(b[16:]) || m.state(now, q.maxReceives) != messageHeld {
		return 0, nil
	}
	return slot, m
}

func (q *queue) Extend(ctx context.Context, receipts []string, visibility time.Duration) error {
	if err := engine.CheckVisibility(visibility); err != nil {
		return err
	}
	if err := q.writable(ctx); err != nil {
		return err
	}
	q.mu.Lock()
	now := q.now()
	for _, r := range receipts {
		if slot, m := q.heldMessage(r, now); m != nil {
			q.index.move(slot, now+int64(visibility))
		}
	}
	q.mu.Unlock()
	q.wakeOne() // the message may become visible sooner than before
	return nil
}

func (q *queue) Ack(ctx context.Context, receipts []string) error {
	type leaving struct {
		slot    uint32
		seq     uint64
		counted bool // the message may have a row in tableReceived
	}
	gone := make([]leaving, 0, len(receipts))
	q.mu.Lock()
	now := q.now()
	for _, r := range receipts {
		if slot, m := q.heldMessage(r, now); m != nil {
			q.index.remove(slot) // so that no Receive gets the message before it is deleted
			gone = append(gone, leaving{slot, m.seq, m.receives > 1 || !q.skipsFirstReceive()})
		}
	}
	q.mu.Unlock()
	if len(gone) == 0 {
		return q.writable(ctx)
	}
	k := make([]byte, 0, len(q.prefix)+8)
	err := q.rows.Post(ctx, func(b rows.Batch) {
		for _, g := range gone {
			b.Delete(tableMessages, q.appendKey(k, g.seq))
		}
		for _, g := range gone {
			if g.counted {
				b.Delete(tableReceived, q.appendKey(k, g.seq))
			}
		}
	})
	q.mu.Lock()
	for _, g := range gone {
		if err == nil {
			q.index.freeSlot(g.slot)
		} else {
			q.index.push(g.slot)
		}
	}
	q.mu.Unlock()
	if err != nil {
		q.wakeOne()
	}
	return err
}

func (q *queue) Release(ctx context.Context, receipt string, delay time.Duration) error {
	if err := engine.CheckDelay(delay); err != nil {
		return err
	}
	if err := q.writable(ctx); err != nil {
		return err
	}
	q.mu.Lock()
	now := q.now()
	slot, m := q.heldMessage(receipt, now)
	if m == nil {
		q.mu.Unlock()
		return nil
	}
	m.hold = notHeld
	q.index.move(slot, now+int64(delay))
	released := takenMessage{slot, *m}
	q.mu.Unlock()
	q.wakeOne()
	return q.putReceived(ctx, released)
}
