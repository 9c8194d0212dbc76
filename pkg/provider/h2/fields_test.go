package h2

import (
	"testing"

	"golang.org/x/net/http2/hpack"
)

// checkFields encodes with sets and sizes as ops say, and decodes it again.
func checkFields(t *testing.T, e *encoder, sets []*Fields, ops []byte) {
	t.Helper()
	var got []hpack.HeaderField
	dec := hpack.NewDecoder(4096, func(f hpack.HeaderField) { got = append(got, f) })
	for _, op := range ops {
		if op >= 200 { // the other side wants another size
			size := uint32(op-200) * 20
			if op == 255 {
				size = 1 << 20
			}
			e.setLimit(size)
			dec.SetAllowedMaxDynamicTableSize(size)
			if size < 4096 {
				dec.SetMaxDynamicTableSize(size) // what does not shrink breaks
			}
			continue
		}
		r := newRequest("")
		r.Fields = sets[int(op)%len(sets)]
		got = got[:0]
		if _, err := dec.Write(e.append(nil, r)); err != nil {
			t.Fatalf("%v", err)
		}
		if err := dec.Close(); err != nil {
			t.Fatal(err)
		}
		want := append(append([]hpack.HeaderField{}, r.Fields.pseudo...), hpack.HeaderField{Name: ":path", Value: "/x"})
		want = append(append(want, r.Fields.regular...), hpack.HeaderField{Name: "id", Value: "1"})
		if len(got) != len(want) {
			t.Fatalf("%v, want %v", got, want)
		}
		for i := range want {
			if got[i].Name != want[i].Name || got[i].Value != want[i].Value {
				t.Fatalf("%v, want %v", got[i], want[i])
			}
		}
	}
}

func TestAppendInt(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 126, 127, 128, 254, 255, 256, 16_000, 1 << 20} {
		b := appendString(nil, make([]byte, n))
		fields, err := hpack.NewDecoder(4096, nil).DecodeFull(append([]byte{0, 1, 'x'}, b...))
		if err != nil || len(fields) != 1 || len(fields[0].Value) != n {
			t.Errorf("%d: %v", n, err)
		}
	}
}
