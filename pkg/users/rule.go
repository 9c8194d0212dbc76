package users

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// rule contains the preferences of a user that differ from the default, in 8 bytes.
type rule struct {
	muted    uint16 // one bit for each pair of channel and category
	from, to uint16 // quiet hours, minutes of the local day; equal: no quiet hours
	zone     uint16 // index in zones
}

// ruleSize is how many bytes rule.append adds.
const ruleSize = 8

func (r rule) isDefault() bool { return r.muted == 0 && r.from == r.to }

func (r rule) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, r.muted)
	b = binary.LittleEndian.AppendUint16(b, r.from)
	b = binary.LittleEndian.AppendUint16(b, r.to)
	return binary.LittleEndian.AppendUint16(b, r.zone)
}

func decodeRule(b []byte) rule {
	v := binary.LittleEndian.Uint64(b)
	return rule{uint16(v), uint16(v >> 16), uint16(v >> 32), uint16(v >> 48)}
}

func muteBit(ch notify.Channel, cat notify.Category) uint16 {
	return 1 << (uint(ch-1)*uint(len(notify.Categories)) + uint(cat-1))
}

// parseOptOut returns the mute bits of one opt-out entry: a channel, a category, or
// "channel/category".
func parseOptOut(s string) (uint16, error) {
	channels, categories := notify.Channels[:], notify.Categories[:]
	chName, catName, both := strings.Cut(s, "/")
	ch, isChannel := notify.ParseChannel(chName)
	if !both {
		catName = chName
	}
	cat, isCategory := notify.ParseCategory(catName)
	switch {
	case both && !(isChannel && isCategory), !isChannel && !isCategory:
		return 0, fmt.Errorf("%q must be a channel like sms, a category like marketing, or both like sms/marketing", s)
	case isCategory && cat.Critical():
		return 0, errCritical
	}
	if isChannel {
		channels = []notify.Channel{ch}
	}
	if isCategory {
		categories = []notify.Category{cat}
	}
	var bits uint16
	for _, ch := range channels {
		for _, cat := range categories {
			bits |= muteBit(ch, cat)
		}
	}
	return bits, nil
}

// parseClock parses "HH:MM" and returns minutes of the day.
func parseClock(s string) (uint16, error) {
	if len(s) != 5 || s[2] != ':' || strings.Trim(s[:2]+s[3:], "0123456789") != "" {
		return 0, fmt.Errorf("%q is not a time of day like 22:00", s)
	}
	h, m := (s[0]-'0')*10+s[1]-'0', (s[3]-'0')*10+s[4]-'0'
	if h > 23 || m > 59 {
		return 0, fmt.Errorf("%q is not a time of day from 00:00 to 23:59", s)
	}
	return uint16(h)*60 + uint16(m), nil
}

// ruleOf returns the rule of a stored profile. It ignores entries that it cannot parse, for example
// entries of a newer release. So it may mute less than the user wanted, never more.
func (z *zones) ruleOf(p *engine.Profile) (r rule) {
	for _, s := range p.OptOut {
		if bits, err := parseOptOut(s); err == nil {
			r.muted |= bits
		}
	}
	if q := p.QuietHours; q != nil {
		from, err1 := parseClock(q.From)
		to, err2 := parseClock(q.To)
		zone, err3 := z.index(p.TimeZone)
		if err1 == nil && err2 == nil && err3 == nil {
			r.from, r.to, r.zone = from, to, zone
		}
	}
	return r
}

// quietAt reports whether a minute of the local day is in the quiet hours.
func (r rule) quietAt(minute uint16) bool {
	if r.from <= r.to {
		return r.from <= minute && minute < r.to
	}
	return minute >= r.from || minute < r.to
}

// quietUntil returns the first time, from now on, at which the local clock is outside the quiet
// hours. This may be now itself. If the local clock skips the hour in which the quiet hours end,
// they end at the skip. If an hour happens twice, it is quiet both times.
func (r rule) quietUntil(now time.Time, loc *time.Location) time.Time {
	const day = 24 * 60
	t := now.In(loc)
	// Each round moves t to the end of the quiet hours, or to the next change of the zone's offset
	// if that is earlier. No zone changes its offset four times in two days.
	for range 4 {
		h, m, s := t.Clock()
		minute := uint16(h*60 + m)
		if !r.quietAt(minute) {
			return t
		}
		wait := time.Duration((int(r.to)-int(minute)+day)%day)*time.Minute - time.Duration(s)*time.Second - time.Duration(t.Nanosecond())
		end := t.Add(wait)
		if _, change := t.ZoneBounds(); !change.IsZero() && !change.After(end) {
			t = change.In(loc)
			continue
		}
		return end
	}
	return t
}

// zones numbers the time zones in use. A number is never used for another zone. There are only
// about 600 names.
type zones struct {
	mu   sync.Mutex
	byID atomic.Pointer[[]*time.Location]
	name map[string]uint16
}

func newZones() *zones {
	z := &zones{name: map[string]uint16{"": 0, "UTC": 0}}
	z.byID.Store(&[]*time.Location{time.UTC})
	return z
}

func (z *zones) location(i uint16) *time.Location { return (*z.byID.Load())[i] }

// index returns the number of a time zone by its IANA name. It loads the time zone if it is new.
func (z *zones) index(name string) (uint16, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if i, ok := z.name[name]; ok {
		return i, nil
	}
	if name == "Local" { // Go accepts "Local", but that is not the name of a zone
		return 0, fmt.Errorf("%q is not a time zone", name)
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return 0, err
	}
	list := append(slices.Clone(*z.byID.Load()), loc)
	if len(list) > 1<<16 {
		return 0, fmt.Errorf("more than %d time zones", 1<<16)
	}
	i := uint16(len(list) - 1)
	z.byID.Store(&list)
	z.name[name] = i
	return i, nil
}
