package worker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// CampaignHold is what an operator asked of a campaign.
type CampaignHold struct {
	Paused bool
	Rate   float64   // receivers a second, over all partitions of a lane; 0: no limit
	Since  time.Time // when it was set last
}

// Campaigns knows which campaigns are paused or have a rate. All workers of a process
// share one. The zero value and nil hold nothing back. Safe for concurrent use.
type Campaigns struct {
	held atomic.Pointer[map[string]CampaignHold]
}

// Set replaces all holds. The caller must not change held afterwards.
func (c *Campaigns) Set(held map[string]CampaignHold) { c.held.Store(&held) }

// of returns the hold of an envelope's campaign; ok is false if there is none.
func (c *Campaigns) of(e *notify.Envelope) (h CampaignHold, ok bool) {
	if c == nil || e.Campaign == "" {
		return h, false
	}
	if held := c.held.Load(); held != nil {
		h, ok = (*held)[e.Campaign]
	}
	return h, ok
}

func (c *Campaigns) paused(e *notify.Envelope) bool {
	h, _ := c.of(e)
	return h.Paused
}

// Codes of receivers that a campaign's hold put off.
const (
	codeCampaignPaused = "campaign_paused"
	codeCampaignRate   = "campaign_rate"  // it waits for its slot, which its wake says
	codeCampaignQueued = "campaign_queue" // it has no slot yet
)

const (
	// paceAhead is how far ahead slots of a rate are given. Receivers behind that
	// are looked at again then, so a rate that is changed binds within paceAhead.
	// A partition's next owner does not know which slots were given, so it gives none
	// within paceAhead of its first moment.
	paceAhead = time.Minute
	// Receivers of a paused campaign are looked at again after pausedLook, and each
	// time pausedLook later than before, up to pausedMost.
	pausedLook = time.Minute
	pausedMost = 10 * time.Minute
	// paceStep is the precision of a rate: receivers due within it are called now.
	paceStep = time.Second
)

// pace gives out the slots of campaigns with a rate in one partition. Users are
// spread evenly over a lane's partitions, so each has an equal part of the rate.
type pace struct {
	mu   sync.Mutex
	next map[string]time.Time // by campaign: its next free slot
}

// slots are the times at which n receivers of a window may be called.
type slots struct {
	first time.Time
	gap   time.Duration // 0: all at first
	code  string
	until time.Time // no slots are given behind it
}

// reserve takes slots for n receivers, not before from and as far as they lie within
// paceAhead of now.
func (p *pace) reserve(campaign string, rate float64, n uint32, now, from time.Time) slots {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = map[string]time.Time{}
	}
	s := slots{first: from, gap: time.Duration(float64(time.Second) / rate), code: codeCampaignRate, until: now.Add(paceAhead)}
	if at := p.next[campaign]; at.After(from) {
		s.first = at
	}
	given := uint32(0)
	if room := s.until.Sub(s.first); room > 0 {
		given = uint32(min(int64(n), int64(room/max(s.gap, 1))+1))
	}
	p.next[campaign] = s.first.Add(time.Duration(given) * s.gap)
	return s
}

// at returns the wake and the code of the window's receiver k; 0: it may be called.
func (s *slots) at(k uint32, now time.Time) (wake int64, code string) {
	at := s.first.Add(time.Duration(k) * s.gap)
	switch {
	case s.code == codeCampaignPaused:
	case at.After(s.until):
		return roundUp(s.until, paceStep), codeCampaignQueued
	case at.Sub(now) < paceStep:
		return 0, ""
	}
	return roundUp(at, paceStep), s.code
}

// before returns the wake, or the time at which the envelope expires if that is earlier.
func before(wake int64, e *notify.Envelope) int64 {
	if e.Expires != 0 {
		return min(wake, e.Expires)
	}
	return wake
}
