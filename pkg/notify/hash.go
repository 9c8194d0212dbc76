package notify

import "github.com/cespare/xxhash/v2"

func hash64(b []byte) uint64 { return xxhash.Sum64(b) }
