package deadletter

import (
	"fmt"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
)

func TestAuditVerify(t *testing.T) {
	t.Parallel()
	store := memory.New().Audit()
	log := &AuditLog{Store: store}
	var heads []string
	for i := range 1200 {
		a, err := log.Record(t.Context(), api.AuditRow{Actor: "ann", Action: "job.apply", Target: fmt.Sprint(i)})
		if err != nil || a.Seq != uint64(i+1) || a.Hash == "" {
			t.Fatal(a, err)
		}
		heads = append(heads, fmt.Sprintf("%d:%s", a.Seq, a.Hash))
	}
	good, err := log.Verify(t.Context(), heads[700])
	if err != nil || good.Broken != 0 || good.Rows != 1200 || fmt.Sprintf("1200:%s", good.Head) != heads[1199] {
		t.Fatalf("%+v, %v", good, err)
	}
	f := func(what string, broken uint64, expect string, change func([]engine.AuditRow) []engine.AuditRow) {
		t.Helper()
		all, err := store.Rows(t.Context(), 0, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		all = change(all)
		v, err := verifyChain(expect, func(after uint64) ([]engine.AuditRow, error) {
			return all[min(int(after), len(all)):min(int(after)+500, len(all))], nil
		})
		if err != nil || v.Broken != broken || (broken != 0) != (v.Why != "") {
			t.Errorf("%s: %+v, %v", what, v, err)
		}
	}
	f("untouched", 0, "", func(rs []engine.AuditRow) []engine.AuditRow { return rs })
	f("changed", 601, "", func(rs []engine.AuditRow) []engine.AuditRow {
		rs[600].Doc = []byte(`{"actor":"bob"}`)
		return rs
	})
	f("changed, with its hash", 602, "", func(rs []engine.AuditRow) []engine.AuditRow {
		rs[600].Doc = []byte(`{"actor":"bob"}`)
		rs[600].Hash = chainHash(601, rs[600].Prev, rs[600].Doc)
		return rs
	})
	f("changed, with its hash and what the next one says of it", 602, "", func(rs []engine.AuditRow) []engine.AuditRow {
		rs[600].Doc = []byte(`{"actor":"bob"}`)
		rs[600].Hash = chainHash(601, rs[600].Prev, rs[600].Doc)
		rs[601].Prev = rs[600].Hash
		return rs
	})
	f("taken out", 601, "", func(rs []engine.AuditRow) []engine.AuditRow { return append(rs[:600], rs[601:]...) })
	f("two exchanged", 11, "", func(rs []engine.AuditRow) []engine.AuditRow {
		rs[10], rs[11] = rs[11], rs[10]
		return rs
	})
	f("cut off, nobody kept a head", 0, "", func(rs []engine.AuditRow) []engine.AuditRow { return rs[:600] })
	f("cut off", 601, heads[700], func(rs []engine.AuditRow) []engine.AuditRow { return rs[:600] })
}
