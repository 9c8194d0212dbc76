package deadletter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/store"
)

// AuditLog records the actions of operators as a hash chain: the hash of each row also covers the
// hash of the row before it. Verify finds a row that was changed, removed or inserted. If rows at
// the end were removed, it finds this only if the caller passes the hash of one of them.
type AuditLog struct {
	Store *store.Audit
	Now   func() time.Time // nil: time.Now
}

// Record adds a row for an action. If Record returns an error, the caller must not do the action.
func (l *AuditLog) Record(ctx context.Context, a api.AuditRow) (api.AuditRow, error) {
	now := time.Now
	if l.Now != nil {
		now = l.Now
	}
	a.At = now().UTC()
	row, err := l.Store.Append(ctx, func(last engine.AuditRow) (engine.AuditRow, error) {
		a.Seq, a.Hash = 0, "" // Seq and Hash are stored next to the document, not in it
		doc, err := json.Marshal(a)
		if err != nil {
			return engine.AuditRow{}, err
		}
		return engine.AuditRow{Prev: last.Hash, Hash: chainHash(last.Seq+1, last.Hash, doc), Doc: doc}, nil
	})
	if err != nil {
		return a, err
	}
	a.Seq, a.Hash = row.Seq, hex.EncodeToString(row.Hash)
	if told, ok := ctx.Value(witnessKey{}).(func(api.AuditRow)); ok {
		told(a)
	}
	return a, nil
}

type witnessKey struct{}

// Witness returns a context for Record: after Record has stored a row, it calls fn with the row. A
// handler uses this to show the operator the audit row of a change.
func Witness(ctx context.Context, fn func(api.AuditRow)) context.Context {
	return context.WithValue(ctx, witnessKey{}, fn)
}

// chainHash returns the hash of a row. prev is the hash of the row before it.
func chainHash(seq uint64, prev, doc []byte) []byte {
	h := sha256.New()
	_ = binary.Write(h, binary.BigEndian, seq) // writing to a hash never fails
	h.Write([]byte{byte(len(prev))})
	h.Write(prev)
	h.Write(doc)
	return h.Sum(nil)
}

// Acts returns up to max rows with a Seq greater than lastSeq, oldest first.
func (l *AuditLog) Acts(ctx context.Context, lastSeq uint64, max int) ([]api.AuditRow, error) {
	rows, err := l.Store.Rows(ctx, lastSeq, max)
	if err != nil {
		return nil, err
	}
	out := make([]api.AuditRow, len(rows))
	for i, r := range rows {
		if err := json.Unmarshal(r.Doc, &out[i]); err != nil {
			return nil, fmt.Errorf("row %d of the audit log cannot be decoded: %w", r.Seq, err)
		}
		out[i].Seq, out[i].Hash = r.Seq, hex.EncodeToString(r.Hash)
	}
	return out, nil
}

// Last returns the Seq of the last row.
func (l *AuditLog) Last(ctx context.Context) (uint64, error) {
	row, err := l.Store.Last(ctx)
	return row.Seq, err
}

// Verify reads the whole chain and reports the first row that does not fit into it. The parameter
// expect is "<seq>:<hash>" of a row that was once the last row; this row must still be in the
// chain. If expect is empty, Verify does not check this.
func (l *AuditLog) Verify(ctx context.Context, expect string) (api.AuditCheck, error) {
	return verifyChain(expect, func(after uint64) ([]engine.AuditRow, error) { return l.Store.Rows(ctx, after, 500) })
}

// verifyChain does the work of Verify. It gets the rows from the function readAfter, which returns
// some rows with a Seq greater than seq, or no rows at the end of the log.
func verifyChain(expect string, readAfter func(seq uint64) ([]engine.AuditRow, error)) (api.AuditCheck, error) {
	var v api.AuditCheck
	var prev []byte
	found := expect == ""
	for {
		rows, err := readAfter(v.Rows)
		if err != nil {
			return v, err
		}
		for _, r := range rows {
			switch {
			case r.Seq != v.Rows+1:
				v.Broken, v.Why = v.Rows+1, "the row is missing"
			case !bytes.Equal(r.Prev, prev):
				v.Broken, v.Why = r.Seq, "the row does not contain the hash of the row before it"
			case !bytes.Equal(r.Hash, chainHash(r.Seq, prev, r.Doc)):
				v.Broken, v.Why = r.Seq, "the content of the row was changed"
			}
			if v.Broken != 0 {
				return v, nil
			}
			v.Rows, prev = r.Seq, r.Hash
			v.Head = hex.EncodeToString(r.Hash)
			found = found || expect == fmt.Sprintf("%d:%s", r.Seq, v.Head)
		}
		if len(rows) == 0 {
			break
		}
	}
	if !found {
		v.Broken, v.Why = v.Rows+1, "the expected row is missing: the end of the log was cut off, or the log was rewritten"
	}
	return v, nil
}
