package load

import "testing"

func TestValueAt(t *testing.T) {
	t.Parallel()
	h := NewHistogram()
	f := func(p float64, want int64) {
		t.Helper()
		if got := ValueAt(h, p); !h.ValuesAreEquivalent(got, want) && got != want {
			t.Errorf("p%g: %d, want %d", p, got, want)
		}
	}
	f(50, 0)
	for i := range int64(1000) {
		if err := h.RecordValue((i + 1) * 1e6); err != nil {
			t.Fatal(err)
		}
	}
	f(0, 1e6)
	f(50, 500e6)
	f(50.01, 501e6)
	f(99, 990e6)
	f(99.9, 999e6)
	f(99.91, 1000e6) // 999.1 is rounded up to the 1,000th value
	f(99.99, 1000e6)
	f(100, 1000e6)
	f(101, 1000e6)
}
