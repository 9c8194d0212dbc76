package record

import (
	"math"
	"slices"

	"github.com/notifyd/notifyd/pkg/load"
)

// distribution holds the mean and variance of a series. Welford's method updates them with each
// value.
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

// evenBounds returns the bounds of the even distribution that has the same mean and variance. It is
// needed because a scenario can express only even distributions. The bounds are limited to the
// least and the greatest value of the series.
func (s *distribution) evenBounds() (low, high float64) {
	half := math.Sqrt(3 * s.squares / max(s.n, 1))
	return max(s.mean-half, s.least), min(s.mean+half, s.most)
}

// Skew describes how unevenly messages are spread over users.
type Skew struct {
	Users    int     `json:"users"`
	Top1     float64 `json:"top_1"`              // share of all messages that the user with the most messages got
	Top10    float64 `json:"top_10"`             // share of all messages that the ten users with the most messages got
	Top1Pct  float64 `json:"top_1pct"`           // share of all messages that the 1% of users with the most messages got
	Exponent float64 `json:"exponent,omitempty"` // exponent of the Zipf distribution that fits; 0: an even distribution
	once     bool    // true: no user got more than one message
}

// minMessages decides which users are used to compute the exponent: only those with at least this
// number of messages. The share of a user with fewer messages depends more on chance than on the
// distribution.
const minMessages = 10

// skewOf describes how messages are spread over users. The parameter byUser holds the number of
// messages of each user. Its keys are hashes of the users.
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

// fitExponent returns the Zipf exponent with which the users with the most messages get the given
// share of all messages. The parameter top is the number of these users. fitExponent returns 0 if
// an even distribution could give the same share by chance.
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

// minExponent is the lowest exponent that fitExponent returns. A lower exponent may be only chance.
const minExponent = 0.15
