package notify

import "github.com/cespare/xxhash/v2"

func hash64(b []byte) uint64 { return xxhash.Sum64(b) }

// Mix mixes the bits of x, so that each bit of x affects all bits of the result. It is the finaliser of
// splitmix64.
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
