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

// AuditLog chains what operators do: each row's hash covers the row before, so
// that a row changed, taken out or put in between is noticed. A cut end is
// noticed by whoever kept the hash of a later row.
type AuditLog struct {
	Store *store.Audit
	Now   func() time.Time // nil: time.Now
}

// Record adds a row. When it returns an error, what was to be recorded must not
// be done.
func (l *AuditLog) Record(ctx context.Context, a api.AuditRow) (api.AuditRow, error) {
	now := time.Now
	if l.Now != nil {
		now = l.Now
	}
	a.At = now().UTC()
	row, err := l.Store.Append(ctx, func(last engine.AuditRow) (engine.AuditRow, error) {
		a.Seq, a.Hash = 0, "" // they stand beside the document
		doc, err := json.Marshal(a)
		if err != nil {
			return engine.AuditRow{}, err
		}
		return engine.AuditRow{Prev: last.Hash, Hash: chain(last.Seq+1, last.Hash, doc), Doc: doc}, nil
	})
	if err != nil {
		return a, err
	}
	a.Seq, a.Hash = row.Seq, hex.EncodeToString(row.Hash)
	if told, ok := ctx.Value(witness{}).(func(api.AuditRow)); ok {
		told(a)
	}
	return a, nil
}

type witness struct{}

// Witness returns a context under which told hears of each row that is recorded,
// when it is: who asks for a change can then be told under which row it stands.
func Witness(ctx context.Context, told func(api.AuditRow)) context.Context {
	return context.WithValue(ctx, witness{}, told)
}

func chain(seq uint64, prev, doc []byte) []byte {
	h := sha256.New()
	_ = binary.Write(h, binary.BigEndian, seq) // a hash takes all
	h.Write([]byte{byte(len(prev))})
	h.Write(prev)
	h.Write(doc)
	return h.Sum(nil)
}

// Acts returns rows behind after, oldest first.
func (l *AuditLog) Acts(ctx context.Context, after uint64, max int) ([]api.AuditRow, error) {
	rows, err := l.Store.Rows(ctx, after, max)
	if err != nil {
		return nil, err
	}
	out := make([]api.AuditRow, len(rows))
	for i, r := range rows {
		if err := json.Unmarshal(r.Doc, &out[i]); err != nil {
			return nil, fmt.Errorf("audit row %d: %w", r.Seq, err)
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

// Verify reads the whole chain. With expect, "<seq>:<hash>" of an earlier head,
// that row must still be what it was.
func (l *AuditLog) Verify(ctx context.Context, expect string) (api.AuditCheck, error) {
	return verify(expect, func(after uint64) ([]engine.AuditRow, error) { return l.Store.Rows(ctx, after, 500) })
}

// verify is Verify of the rows that read returns, those behind after, some at a time.
func verify(expect string, read func(after uint64) ([]engine.AuditRow, error)) (api.AuditCheck, error) {
	var v api.AuditCheck
	var prev []byte
	met := expect == ""
	for {
		rows, err := read(v.Rows)
		if err != nil {
			return v, err
		}
		for _, r := range rows {
			switch {
			case r.Seq != v.Rows+1:
				v.Broken, v.Why = v.Rows+1, "the row is missing"
			case !bytes.Equal(r.Prev, prev):
				v.Broken, v.Why = r.Seq, "it does not follow the row before"
			case !bytes.Equal(r.Hash, chain(r.Seq, prev, r.Doc)):
				v.Broken, v.Why = r.Seq, "it was changed"
			}
			if v.Broken != 0 {
				return v, nil
			}
			v.Rows, prev = r.Seq, r.Hash
			v.Head = hex.EncodeToString(r.Hash)
			met = met || expect == fmt.Sprintf("%d:%s", r.Seq, v.Head)
		}
		if len(rows) == 0 {
			break
		}
	}
	if !met {
		v.Broken, v.Why = v.Rows+1, "the row that was expected is not there: the end was cut off, or all of it written anew"
	}
	return v, nil
}
