package users

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Action is what preferences say of one notification.
type Action uint8

const (
	// Send: nothing speaks against it.
	Send Action = iota
	// OptedOut: the user muted the channel or the category.
	OptedOut
	// Quiet: it waits for the end of the user's quiet hours.
	Quiet
	// Unknown: this process does not hold the user's profile, see Service.Fetch. It is
	// not that of a user who set nothing.
	Unknown
)

func (a Action) String() string { return [...]string{"send", "opted_out", "quiet", "unknown"}[a] }

// Verdict is the answer of Decide.
type Verdict struct {
	Action Action
	Until  int64 // Quiet: when the quiet hours end, ms since 1970
}

// Snapshot is the preferences and addresses of the users of one process's share, as it
// sees them now; without shares, of all users. Readers never wait; users who set nothing
// cost nothing.
//
// What stands in the table is current, for changes of all users are followed. So a user
// who is found there with an address on the channel is known. Of one who is not, the
// share says whether that means that there is nothing, or that it is not held here.
//
// What a user set and where the user is reached stand in one value: one look-up,
// not two; see find for what it takes. With 5M users with an address of 64 bytes it is
// 69 bytes a user, 103 where the address is no token of APNs (BenchmarkLook), of which
// 11 are the user id that each hit is compared with: a hash alone could send to
// somebody else's device.
type Snapshot struct {
	zones      *zones
	users      table        // user -> profile, see packProfile
	suppressed *set         // address -> number of profiles that say so
	bySupp     table        // user -> {uvarint length, address}...: what the profile suppresses
	listed     atomic.Int64 // addresses in bySupp

	held  atomic.Pointer[share] // whose users are all in the table; nil: all users
	scope *share                // held, and what is being loaded: apply keeps the users of it; Service.applyMu guards it

	guestMu sync.RWMutex // its writers have Service.applyMu
	guests  guests
}

func newSnapshot(shares bool) *Snapshot {
	s := &Snapshot{zones: newZones(), suppressed: newSet()}
	if shares {
		s.scope = newShare(nil)
		s.held.Store(s.scope)
	}
	return s
}

// knows reports whether the lack of an address of a user on a channel says that there
// is none.
func (s *Snapshot) knows(ch notify.Channel, user []byte) bool {
	h := s.held.Load()
	if h == nil || h.has(ch, user) {
		return true
	}
	s.guestMu.RLock()
	defer s.guestMu.RUnlock()
	known, _ := s.guests.held(user)
	return known
}

// keeps returns the channels of which a user is kept. The caller has Service.applyMu.
func (s *Snapshot) keeps(user []byte) channels {
	c := s.scope.channels(user)
	if _, guest := s.guests.held(user); guest {
		c = allChannels
	}
	return c
}

// Answer says whether, when and where a user is reached.
type Answer struct {
	Verdict
	of        uint8
	addresses []byte // {uvarint length, address as it is kept}...
}

// NewAnswer returns an answer that was not looked up, for tests of readers.
func NewAnswer(v Verdict, addresses ...string) Answer {
	a := Answer{Verdict: v, of: uint8(len(addresses))}
	for _, s := range addresses {
		kept := appendAddress(nil, s)
		a.addresses = append(binary.AppendUvarint(a.addresses, uint64(len(kept))), kept...)
	}
	return a
}

// Only appends the address to buf if there is one, as nearly always; false: there are
// others or none, see Targets.
func (a *Answer) Only(buf []byte) (_ []byte, ok bool) {
	if a.of != 1 || a.addresses[0] == 0 || a.addresses[0] >= 0x80 {
		return buf, false
	}
	return appendKept(buf, a.addresses[1:1+int(a.addresses[0])]), true
}

// Targets appends the addresses to dst; their bytes are appended to buf, which must
// not be written to while they are in use. Suppressed ones are among them: ordinals
// are those of the profile.
func (a *Answer) Targets(dst []notify.Target, buf []byte) (targets []notify.Target, bytes []byte) {
	b := a.addresses
	for i := range a.of {
		var kept []byte
		if size := int(b[0]); size < 0x80 { // nearly all
			kept, b = b[1:1+size], b[1+size:]
		} else {
			kept, b = cut(b)
		}
		from := len(buf)
		buf = appendKept(buf, kept)
		dst = append(dst, notify.Target{Addr: i, Of: a.of, Address: buf[from:len(buf):len(buf)]})
	}
	return dst, buf
}

// Look asks for many users at once what becomes of a notification to each at now:
// answers[i] is that for users[i]. Critical categories are always sent. It returns
// false if one of the answers is Unknown.
func (s *Snapshot) Look(answers []Answer, users [][]byte, ch notify.Channel, cat notify.Category, now time.Time) (known bool) {
	known = true
	f := finders.Get().(*finder)
	defer finders.Put(f)
	defer f.clear(min(len(users), block))
	for len(users) > 0 {
		n := min(len(users), block)
		s.users.find(f, users[:n])
		for i, v := range f.found[:n] {
			if s.answer(&answers[i], v, ch, cat, now); answers[i].of == 0 && !s.knows(ch, users[i]) {
				answers[i].Verdict, known = Verdict{Action: Unknown}, false
			}
		}
		answers, users = answers[n:], users[n:]
	}
	return known
}

// find is Look for one user.
func (s *Snapshot) find(user []byte, ch notify.Channel, cat notify.Category, now time.Time) (a Answer) {
	v, _ := s.users.get(hashKey(user), user)
	if s.answer(&a, v, ch, cat, now); a.of == 0 && !s.knows(ch, user) {
		a.Verdict = Verdict{Action: Unknown}
	}
	return a
}

// Decide says what becomes of a notification to one user at now. Critical
// categories are always sent.
func (s *Snapshot) Decide(user []byte, ch notify.Channel, cat notify.Category, now time.Time) Verdict {
	return s.find(user, ch, cat, now).Verdict
}

// Addresses appends the addresses of a user on a channel to dst, see
// Answer.Targets. It returns none of a user who is Unknown.
func (s *Snapshot) Addresses(dst []notify.Target, user []byte, ch notify.Channel) []notify.Target {
	a := s.find(user, ch, notify.OTP, time.Time{})
	dst, _ = a.Targets(dst, nil)
	return dst
}

// answer reads the value of a user; nil is one who set nothing.
func (s *Snapshot) answer(a *Answer, v []byte, ch notify.Channel, cat notify.Category, now time.Time) {
	*a = Answer{}
	if len(v) == 0 {
		return
	}
	ruled := v[0] != 0
	v = v[1:]
	if ruled {
		if !cat.Critical() {
			a.Verdict = s.verdict(decodeRule(v), ch, cat, now)
		}
		v = v[ruleSize:]
	}
	for len(v) > 0 {
		size, n := uint64(v[2]), 1
		if size >= 0x80 {
			size, n = binary.Uvarint(v[2:])
		}
		end := 2 + n + int(size)
		if v[0] == byte(ch) {
			a.of, a.addresses = v[1], v[2+n:end:end]
			return
		}
		v = v[end:]
	}
}

func (s *Snapshot) verdict(r rule, ch notify.Channel, cat notify.Category, now time.Time) Verdict {
	if r.muted&muteBit(ch, cat) != 0 {
		return Verdict{Action: OptedOut}
	}
	if r.from == r.to {
		return Verdict{}
	}
	end := r.quietUntil(now, s.zones.location(r.zone))
	if !end.After(now) {
		return Verdict{}
	}
	return Verdict{Action: Quiet, Until: end.UnixMilli()}
}

// Suppresses reports whether Suppressed may be true of an address: asked once for many,
// it saves asking for each.
func (s *Snapshot) Suppresses() bool { return s.suppressed.len() > 0 }

// Suppressed reports whether an address is known to be dead or has told a
// provider to stop, for whichever user.
func (s *Snapshot) Suppressed(ch notify.Channel, address []byte) bool {
	if !s.Suppresses() {
		return false
	}
	if ch == notify.Email && slices.ContainsFunc(address, func(c byte) bool { return 'A' <= c && c <= 'Z' }) {
		address = []byte(strings.ToLower(string(address)))
	}
	_, ok := s.suppressed.get(hashKey(address), address)
	return ok
}

// apply makes a profile the user's current one. One writer at a time.
//
// The order matters to a reader between two steps: what stops a call comes
// before what allows one.
func (s *Snapshot) apply(p *engine.Profile) {
	user := []byte(p.User)
	h := hashKey(user)
	s.applySuppressed(h, user, p)
	s.users.set(h, user, s.packProfile(nil, p, s.keeps(user)))
}

func (s *Snapshot) applySuppressed(h uint64, user []byte, p *engine.Profile) {
	old, _ := s.bySupp.get(h, user)
	fresh := packSuppressed(nil, p)
	if string(old) == string(fresh) {
		return
	}
	s.bySupp.set(h, user, fresh)
	for b := fresh; len(b) > 0; {
		var a []byte
		a, b = cut(b)
		s.suppressed.count(a, 1)
		s.listed.Add(1)
	}
	for b := old; len(b) > 0; {
		var a []byte
		a, b = cut(b)
		s.suppressed.count(a, -1)
		s.listed.Add(-1)
	}
}

// packProfile appends the value of a user, with the addresses on some channels; nil when
// nothing was set or of no channel the user is kept.
//
//	1 if a rule follows, else 0
//	the rule
//	of each channel: its number, count, uvarint size of {uvarint length, address as it is kept}...
func (s *Snapshot) packProfile(b []byte, p *engine.Profile, of channels) []byte {
	if of == 0 {
		return nil
	}
	from := len(b)
	if r := s.zones.ruleOf(p); r.isDefault() {
		b = append(b, 0)
	} else {
		b = r.append(append(b, 1))
	}
	empty := len(b) == from+1
	for _, ch := range notify.Channels {
		list := p.Addresses[ch.String()]
		if len(list) == 0 || !of.has(ch) {
			continue
		}
		empty = false
		list = list[:min(len(list), 255)]
		var space [2][128]byte
		kept, all := space[0][:0], space[1][:0]
		for _, a := range list {
			kept = appendAddress(kept[:0], a)
			all = append(binary.AppendUvarint(all, uint64(len(kept))), kept...)
		}
		b = binary.AppendUvarint(append(b, byte(ch), byte(len(list))), uint64(len(all)))
		b = append(b, all...)
	}
	if empty {
		return nil
	}
	return b
}

// packSuppressed appends what a profile suppresses, in a fixed order; nil when
// it is nothing.
func packSuppressed(b []byte, p *engine.Profile) []byte {
	list := make([]string, 0, len(p.Suppressed))
	for a := range p.Suppressed {
		if a != "" { // no key of a table
			list = append(list, suppressKey(a))
		}
	}
	slices.Sort(list)
	for _, a := range slices.Compact(list) {
		b = append(binary.AppendUvarint(b, uint64(len(a))), a...)
	}
	return b
}

// suppressKey is the form in which an address is compared: mailboxes without
// regard to case. A push address keeps it.
func suppressKey(address string) string {
	if strings.Contains(address, "@") && !strings.HasPrefix(address, "apns:") && !strings.HasPrefix(address, "fcm:") {
		return strings.ToLower(address)
	}
	return address
}

func cut(b []byte) (val, rest []byte) {
	size, n := binary.Uvarint(b)
	end := n + int(size)
	return b[n:end:end], b[end:]
}
