package record

import (
	"math"
	"slices"

	"github.com/notifyd/notifyd/pkg/load"
)

// spread is the distribution of some figures, by its moments (Welford).
type spread struct{ n, mean, squares, least, most float64 }

func (s *spread) add(v float64) {
	if s.n == 0 || v < s.least {
		s.least = v
	}
	s.most = max(s.most, v)
	s.n++
	d := v - s.mean
	s.mean += d / s.n
	s.squares += d * (v - s.mean)
}

// even returns the bounds of the even distribution with the same mean and variance, which
// is what a scenario can say, within what was seen.
func (s *spread) even() (low, high float64) {
	half := math.Sqrt(3 * s.squares / max(s.n, 1))
	return max(s.mean-half, s.least), min(s.mean+half, s.most)
}

// Skew says how messages are spread over users.
type Skew struct {
	Users    int     `json:"users"`
	Top1     float64 `json:"top_1"`  // share of the messages that the one with the most got
	Top10    float64 `json:"top_10"` // likewise ten of them
	Top1Pct  float64 `json:"top_1pct"`
	Exponent float64 `json:"exponent,omitempty"` // of the Zipf distribution that fits; 0: even
	once     bool    // each user got one message
}

// certain is how many messages a user must have got for the share of such users to say
// something of the distribution and not of chance.
const certain = 10

// skewOf describes the messages of users.
func skewOf(byUser map[uint64]uint32) Skew {
	counts := make([]uint32, 0, len(byUser))
	total := 0.0
	for _, n := range byUser {
		counts = append(counts, n)
		total += float64(n)
	}
	slices.SortFunc(counts, func(a, b uint32) int { return int(b) - int(a) })
	share := func(top int) float64 {
		sum := 0.0
		for _, n := range counts[:min(top, len(counts))] {
			sum += float64(n)
		}
		return sum / total
	}
	k := Skew{Users: len(counts)}
	if k.Users == 0 {
		return k
	}
	k.Top1, k.Top10, k.Top1Pct, k.once = share(1), share(10), share((k.Users+99)/100), counts[0] == 1
	top, _ := slices.BinarySearchFunc(counts, certain, func(n, certain uint32) int { return int(certain) - int(n) - 1 })
	if top = min(top, k.Users/10); top > 0 {
		k.Exponent = exponent(float64(k.Users), float64(top), share(top))
	}
	return k
}

// exponent returns the exponent with which the top users have this share; 0 where an even
// distribution, with its chance, could give it.
func exponent(users, top, share float64) float64 {
	low, high := 0.0, 9.9
	for range 60 {
		mid := (low + high) / 2
		if load.ZipfShare(users, mid, top) < share {
			low = mid
		} else {
			high = mid
		}
	}
	if low < evenBelow {
		return 0
	}
	return math.Round(low*1000) / 1000
}

// evenBelow is an exponent that chance alone may give.
const evenBelow = 0.15
