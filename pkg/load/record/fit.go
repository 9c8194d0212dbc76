package record

import (
	"math"
	"slices"

	"github.com/notifyd/notifyd/pkg/load"
)

// distribution holds the mean and variance of a series, updated by Welford's method.
type distribution struct{ n, mean, squares, least, most float64 }

func (s *distribution) add(v float64) {
	if s.n == 0 || v < s.least {
		s.least = v
	}
	s.most = max(s.most, v)
	s.n++
	d := v - s.mean
	s.mean += d / s.n
	s.squares += d * (v - s.mean)
}

// evenBounds returns the bounds of the even distribution with the same mean and variance, cut
// to the least and greatest value seen. A scenario can express even distributions only.
func (s *distribution) evenBounds() (low, high float64) {
	half := math.Sqrt(3 * s.squares / max(s.n, 1))
	return max(s.mean-half, s.least), min(s.mean+half, s.most)
}

// Skew says how messages are spread over users.
type Skew struct {
	Users    int     `json:"users"`
	Top1     float64 `json:"top_1"`  // share of all messages that went to the user with the most
	Top10    float64 `json:"top_10"` // share that went to the ten users with the most
	Top1Pct  float64 `json:"top_1pct"`
	Exponent float64 `json:"exponent,omitempty"` // exponent of the Zipf distribution that fits; 0: even
	once     bool    // each user got one message
}

// minMessages is how many messages a user must have got to be used for the fit. The share of
// users with fewer says more about chance than about the distribution.
const minMessages = 10

// skewOf describes how messages are spread over users. byUser counts them by hash of the user.
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
	top, _ := slices.BinarySearchFunc(counts, minMessages, func(n, certain uint32) int { return int(certain) - int(n) - 1 })
	if top = min(top, k.Users/10); top > 0 {
		k.Exponent = fitExponent(float64(k.Users), float64(top), share(top))
	}
	return k
}

// fitExponent returns the Zipf exponent with which the top users get this share. It returns 0
// if an even distribution could give the same share by chance.
func fitExponent(users, top, share float64) float64 {
	low, high := 0.0, 9.9
	for range 60 {
		mid := (low + high) / 2
		if load.ZipfShare(users, mid, top) < share {
			low = mid
		} else {
			high = mid
		}
	}
	if low < minExponent {
		return 0
	}
	return math.Round(low*1000) / 1000
}

// minExponent is the lowest exponent that counts: chance alone may give a lower one.
const minExponent = 0.15
