package store_test

import (
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
)

func TestAuditOfSeveralBlocks(t *testing.T) {
	overEach(t, func(t *testing.T, open func(t *testing.T) *opened) {
		s := open(t)
		const n = 2100
		for i := range n {
			row := val(s.Audit().Append(bg, func(last engine.AuditRow) (engine.AuditRow, error) {
				return engine.AuditRow{Prev: last.Hash, Hash: []byte{byte(i)}, Doc: []byte("{}")}, nil
			}))(t)
			same(t, "number", row.Seq, uint64(i+1))
		}
		s.reopen()
		same(t, "last", val(s.Audit().Last(bg))(t).Seq, uint64(n))
		for _, page := range []struct {
			after uint64
			max   int
			want  int
		}{{0, 3000, n}, {0, 1024, 1024}, {0, 1025, 1025}, {1023, 2, 2}, {1024, 1, 1}, {2047, 3, 3}, {2090, 100, 10}, {n, 5, 0}, {9999, 5, 0}, {0, 0, 0}} {
			got := val(s.Audit().Rows(bg, page.after, page.max))(t)
			same(t, "rows", len(got), page.want)
			for i, row := range got {
				same(t, "number", row.Seq, page.after+uint64(i)+1)
			}
		}
	})
}
