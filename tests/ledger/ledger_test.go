package main

import "testing"

// TestLedger runs the proof with 10 million ids, a hundredth of the usual number. The ledgers get
// so little memory that they write most ids to disk.
func TestLedger(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	t.Parallel()
	p, err := prove(t.Context(), 10_000_000, t.TempDir(), 8<<20, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(p.line(len(p.wrong) == 0))
	for _, w := range p.wrong {
		t.Error(w)
	}
	if p.disk < 50<<20 || p.ledger.Lost == 0 || p.ledger.Reordered == 0 || p.ledger.Unexpected == 0 || p.ledger.Early == 0 {
		t.Errorf("%d MiB on disk, %+v", p.disk>>20, p.ledger)
	}
}
