package history

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Each hash is found, at each of its ordinals in order of arrival, for every size of
// directory, among hashes that differ little.
func TestIndexFindsAll(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 9))
	for bits := range maxDirBits + 1 {
		hashes := make([]uint64, 3000)
		for i := range hashes {
			hashes[i] = r.Uint64()
			if i%3 == 0 {
				hashes[i] = hashes[r.IntN(i+1)]
			}
			if i%5 == 0 {
				hashes[i] &= 0xff00_0000_0000_0000 // the ends of the directory, too
			}
		}
		before := []byte("before")
		b := appendIndex(slices.Clone(before), hashes, bits)
		if !bytes.HasPrefix(b, before) || int64(len(b)-len(before)) != indexSize(len(hashes), bits) {
			t.Fatalf("%d bits: %d bytes", bits, len(b))
		}
		x := sortedIndex{off: int64(len(before)), entries: len(hashes), bits: bits}
		known := min(bits+16, 64)
		for i := 0; i < len(hashes); i += 7 {
			var want []uint32
			for o, h := range hashes {
				if h>>(64-known) == hashes[i]>>(64-known) {
					want = append(want, uint32(o))
				}
			}
			got, _, err := x.find(bytes.NewReader(b), nil, nil, hashes[i])
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("%d bits, hash %x: %v, %v, want %v", bits, hashes[i], got, err, want)
			}
		}
	}
}

// TestHashColumn: a column is hashed if and only if notify.DecodeEnvelope reads it.
func TestHashColumn(t *testing.T) {
	t.Parallel()
	r, good := rng(7), 0
	for range 20_000 {
		var w notify.ReceiverWriter
		n, index := 1+r.IntN(4), uint32(0)
		for range n {
			rec := notify.Receiver{Index: index + r.Uint32N(200), User: bytes.Repeat([]byte{'u'}, r.IntN(40))}
			if r.IntN(3) == 0 {
				rec.Address = []byte("apns:0")
			}
			if r.IntN(3) == 0 {
				rec.Variables = []byte("{}")
			}
			w.Append(rec)
			index = rec.Index + 1
		}
		column := bytes.Clone(w.Bytes())
		switch r.IntN(4) {
		case 0:
			column[r.IntN(len(column))] ^= 1 << r.IntN(8)
		case 1:
			column = column[:r.IntN(len(column))]
		case 2: // an index beyond the highest
			column = append(column, 0xff, 0xff, 0xff, 0xff, byte(r.IntN(16)), 1<<2, 'u')
			n++
		}
		env := envelope(baseAt(now, 1), 0, 0, "c")
		env.Receivers, env.Count = column, uint32(n)
		var read notify.Envelope
		want := notify.DecodeEnvelope(notify.AppendEnvelope(nil, env), &read)
		hs, first, last, err := hashColumn(nil, column, env.Count)
		if (err == nil) != (want == nil) || err != nil && !errors.Is(err, notify.ErrCorrupt) {
			t.Fatalf("%x of %d: %v, where DecodeEnvelope says %v", column, n, err, want)
		}
		if err != nil {
			continue
		}
		good++
		rd, i := notify.ReadReceivers(column), 0
		for rec := (notify.Receiver{}); rd.Next(&rec); i++ {
			if hs[i] != notify.HashUser(rec.User) || i == 0 && first != rec.Index || i == n-1 && last != rec.Index {
				t.Fatalf("%x: receiver %d", column, i)
			}
		}
		if i != len(hs) {
			t.Fatalf("%x: %d hashes of %d", column, len(hs), i)
		}
	}
	if good < 5000 || good > 15_000 {
		t.Errorf("%d columns are good", good)
	}
}
