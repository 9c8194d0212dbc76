package worker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// CampaignHold is an operator's setting for a campaign.
type CampaignHold struct {
	Paused bool
	Rate   float64   // receivers a second, over all partitions of a lane; 0: no limit
	Since  time.Time // when the setting was last changed
}

// Campaigns contains the campaigns that are paused or have a rate. All workers of a process share
// one Campaigns. The zero value and nil delay no campaign. A Campaigns is safe for concurrent use.
type Campaigns struct {
	held atomic.Pointer[map[string]CampaignHold]
}

// Set replaces all settings. The keys of the map are campaigns. The caller must not change the map
// afterwards.
func (c *Campaigns) Set(byCampaign map[string]CampaignHold) { c.held.Store(&byCampaign) }

// holdOf returns the setting for an envelope's campaign. The result ok is false if the campaign has
// no setting.
func (c *Campaigns) holdOf(e *notify.Envelope) (h CampaignHold, ok bool) {
	if c == nil || e.Campaign == "" {
		return h, false
	}
	if held := c.held.Load(); held != nil {
		h, ok = (*held)[e.Campaign]
	}
	return h, ok
}

func (c *Campaigns) paused(e *notify.Envelope) bool {
	h, _ := c.holdOf(e)
	return h.Paused
}

// Codes of receivers that are deferred because of their campaign.
const (
	codeCampaignPaused = "campaign_paused"
	codeCampaignRate   = "campaign_rate"  // the receiver waits for its slot; Wake in its outcome is the time of the slot
	codeCampaignQueued = "campaign_queue" // the receiver has no slot yet; it asks for one again at the time Wake
)

const (
	// paceAhead is how far into the future the slots of a campaign with a rate are assigned. A
	// receiver that would get a later slot asks again after paceAhead. So a changed rate takes
	// effect within paceAhead.
	//
	// The next owner of a partition does not know which slots are assigned already. So the first
	// slot that it assigns is at the earliest paceAhead after it got the partition.
	paceAhead = time.Minute
	// The receivers of a paused campaign are checked again after pausedLook. Each further wait is
	// longer by pausedLook, up to pausedMost.
	pausedLook = time.Minute
	pausedMost = 10 * time.Minute
	// paceStep is the precision of a rate. A receiver that is due within paceStep is called now.
	paceStep = time.Second
)

// campaignPace assigns the slots of campaigns with a rate in one partition. Users are spread
// evenly over a lane's partitions, so each partition has an equal part of the rate.
type campaignPace struct {
	mu   sync.Mutex
	next map[string]time.Time // by campaign: the next free slot
}

// callSlots are the times at which the receivers of a window may be called.
type callSlots struct {
	first time.Time
	gap   time.Duration // time between two receivers; 0: all receivers get the time in the field first
	code  string
	until time.Time // no slot is assigned after this time
}

// reserve assigns slots to n receivers. The parameter earliest is the earliest time of the first
// slot. No slot is later than paceAhead after the time now. Receivers that get no slot until then
// must ask again.
func (p *campaignPace) reserve(campaign string, rate float64, n uint32, now, earliest time.Time) callSlots {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = map[string]time.Time{}
	}
	s := callSlots{first: earliest, gap: time.Duration(float64(time.Second) / rate), code: codeCampaignRate, until: now.Add(paceAhead)}
	if at := p.next[campaign]; at.After(earliest) {
		s.first = at
	}
	given := uint32(0)
	if room := s.until.Sub(s.first); room > 0 {
		given = uint32(min(int64(n), int64(room/max(s.gap, 1))+1))
	}
	p.next[campaign] = s.first.Add(time.Duration(given) * s.gap)
	return s
}

// wakeOf returns the time until which receiver k of the window must be deferred (wake, in ms since
// 1970), and the code of the deferral. If wake is 0, the receiver may be called now.
func (s *callSlots) wakeOf(k uint32, now time.Time) (wake int64, code string) {
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

// capAtExpiry returns the parameter wake, or the expiry of the envelope if that is earlier.
func capAtExpiry(wake int64, e *notify.Envelope) int64 {
	if e.Expires != 0 {
		return min(wake, e.Expires)
	}
	return wake
}
