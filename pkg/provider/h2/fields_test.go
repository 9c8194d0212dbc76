package h2

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// checkFields encodes with sets and sizes as ops say, and decodes it again.
func checkFields(t *testing.T, ops []byte) {
	t.Helper()
	e, sets := newEncoder(), make([]*Fields, 12)
	for i := range sets {
		sets[i] = NewFields("https", "push.example", Field{Name: "a", Value: strings.Repeat("a", 7*i*i)}, Field{Name: "b", Value: strconv.Itoa(i)},
			Field{Name: "c", Value: "secret", Sensitive: true}, Field{Name: "d", Value: "same"})
	}
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
		if _, err := dec.Write(e.appendBlock(nil, r)); err != nil {
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

func TestFields(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		ops := make([]byte, 60)
		for i := range ops {
			if ops[i] = byte(rng.IntN(200)); rng.IntN(8) == 0 {
				ops[i] = byte(200 + rng.IntN(56))
			}
		}
		checkFields(t, ops)
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
