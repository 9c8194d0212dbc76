package history

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
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
