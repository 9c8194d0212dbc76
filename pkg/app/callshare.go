package app

import (
	"sync"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
)

// callShare divides the concurrent calls of Twilio's accounts among processes. The share of this
// process is the fraction of all SMS partitions that this process owns. callShare counts the
// partitions of the groups of first attempts, because the groups of retries have the same
// partitions. The zero value divides nothing.
type callShare struct {
	channel    notify.Channel
	partitions func(topic string) int
	set        func(provider.Share) // nil: calls are not divided

	mu    sync.Mutex // guards owned; held during each call of the function set, so that the calls do not overlap
	owned [2]float64 // partitions that this process owns: of the fast lane, and of the bulk lane
}

// divide starts to divide the calls if there is a client for Twilio. While the process owns no
// partition, it has the smallest share.
func (s *callShare) divide(p *providers, partitions func(topic string) int) {
	if p.twilio != nil {
		s.channel, s.partitions, s.set = notify.SMS, partitions, p.twilio.SetShare
		s.set(provider.Share{})
	}
}

// followLane adds two functions to e, the events of the consumer group for a lane's first attempts.
// The functions count the partitions that this process owns.
func (s *callShare) followLane(l notify.Lane, e *log.GroupEvents) {
	if s.set == nil || l.Channel != s.channel {
		return
	}
	lane := 0
	if l.Bulk {
		lane = 1
	}
	e.Assigned = func(log.TopicPartition) { s.countOwned(lane, 1) }
	e.Gone = func(log.TopicPartition, bool) { s.countOwned(lane, -1) }
}

// countOwned adds the parameter change to the number of partitions of a lane that this process
// owns, and then sets the new shares.
func (s *callShare) countOwned(lane int, change float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owned[lane] += change
	part := func(lane int) float64 {
		all := s.partitions(notify.Lane{Channel: s.channel, Bulk: lane == 1}.Topic())
		return min(s.owned[lane]/float64(max(all, 1)), 1)
	}
	s.set(provider.Share{Fast: part(0), Bulk: part(1)})
}

// recount sets the shares again. It is called when the numbers of partitions may have been raised.
func (s *callShare) recount() {
	if s.set != nil {
		s.countOwned(0, 0)
	}
}
