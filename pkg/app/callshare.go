package app

import (
	"sync"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
)

// callShare makes the part that this process has of the calls at a time of Twilio's accounts
// go with the partitions of first attempts that it owns. The groups of retries have the same
// partitions. The zero value divides nothing.
type callShare struct {
	channel    notify.Channel
	partitions func(topic string) int
	set        func(provider.Share) // nil: nothing is divided

	mu    sync.Mutex
	owned [2]float64 // partitions that this process owns, of the fast lane and of bulk
}

// divide begins to divide. Until the process owns a partition it has the least.
func (s *callShare) divide(p *providers, partitions func(topic string) int) {
	if p.twilio != nil {
		s.channel, s.partitions, s.set = notify.SMS, partitions, p.twilio.SetShare
		s.set(provider.Share{})
	}
}

// follow lets the events of the group that works on a lane's first attempts count.
func (s *callShare) follow(l notify.Lane, e *log.GroupEvents) {
	if s.set == nil || l.Channel != s.channel {
		return
	}
	lane := 0
	if l.Bulk {
		lane = 1
	}
	e.Assigned = func(log.TopicPartition) { s.own(lane, 1) }
	e.Gone = func(log.TopicPartition, bool) { s.own(lane, -1) }
}

// own counts partitions of a lane that came or went.
func (s *callShare) own(lane int, by float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owned[lane] += by
	part := func(lane int) float64 {
		all := s.partitions(notify.Lane{Channel: s.channel, Bulk: lane == 1}.Topic())
		return min(s.owned[lane]/float64(max(all, 1)), 1)
	}
	s.set(provider.Share{Fast: part(0), Bulk: part(1)})
}

// recount is called when the numbers of partitions may have been raised.
func (s *callShare) recount() {
	if s.set != nil {
		s.own(0, 0)
	}
}
