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

// Action is what a user's preferences say about one notification.
type Action uint8

const (
	// Send: no preference stops the notification.
	Send Action = iota
	// OptedOut: the user muted the channel or the category.
	OptedOut
	// Quiet: the notification waits for the end of the user's quiet hours.
	Quiet
	// Unknown: the profile of this user is not in the memory of this process; see Service.Fetch. A
	// user that certainly has no profile is not Unknown.
	Unknown
)

func (a Action) String() string { return [...]string{"send", "opted_out", "quiet", "unknown"}[a] }

// Verdict is the result of Decide.
type Verdict struct {
	Action Action
	Until  int64 // for Quiet: when the quiet hours end, ms since 1970
}

// Snapshot contains the current preferences and addresses of the users in this process's share.
// Without shares it contains all users. Readers never wait. Users without a profile need no memory.
//
// The entries of the table are current, because the process applies the changes of all users. If
// the table has an address of the user on the channel, the user is known. If it has none, and the
// share includes the user, the user has no address. If the share does not include the user, the
// user is Unknown, unless the user is a guest.
//
// The preferences and addresses of a user are one value, so that one look-up is enough; findBlock
// explains its cost. With 5M users that have one address of 64 bytes, the value needs 69 bytes a
// user, or 103 if the address is not an APNs token (BenchmarkLook). Of these, 11 bytes are the user
// id, which each look-up compares. If only hashes were compared, a message could be sent to another
// person's device.
type Snapshot struct {
	zones           *zones
	users           table        // user -> profile, see packProfile
	suppressed      *set         // address -> number of profiles that suppress it
	suppressedBy    table        // user -> {uvarint length, address}...: addresses that the profile suppresses
	suppressedCount atomic.Int64 // number of addresses in suppressedBy

	// held is the share whose users are all in the table. nil: all users.
	held atomic.Pointer[share]
	// keptShare is the share whose users the method apply keeps in the table. It includes the share
	// in the field held and the share that is being loaded. Service.applyMu guards it.
	keptShare *share

	guestMu sync.RWMutex // a writer also locks Service.applyMu
	guests  guests
}

func newSnapshot(shares bool) *Snapshot {
	s := &Snapshot{zones: newZones(), suppressed: newSet()}
	if shares {
		s.keptShare = newShare(nil)
		s.held.Store(s.keptShare)
	}
	return s
}

// isComplete reports whether the table is complete for a user on a channel. If the table is
// complete and has no address, the user has no address.
func (s *Snapshot) isComplete(ch notify.Channel, user []byte) bool {
	h := s.held.Load()
	if h == nil || h.has(ch, user) {
		return true
	}
	s.guestMu.RLock()
	defer s.guestMu.RUnlock()
	known, _ := s.guests.lookUp(user)
	return known
}

// keptChannels returns the channels for which the table keeps data of a user. Service.applyMu must
// be held.
func (s *Snapshot) keptChannels(user []byte) channelSet {
	c := s.keptShare.channelsOf(user)
	if _, guest := s.guests.lookUp(user); guest {
		c = allChannels
	}
	return c
}

// Answer says whether, when and at which addresses a user may be notified.
type Answer struct {
	Verdict
	addressCount uint8
	addresses    []byte // {uvarint length, packed address}...
}

// NewAnswer makes an answer without a look-up. Tests use it.
func NewAnswer(v Verdict, addresses ...string) Answer {
	a := Answer{Verdict: v, addressCount: uint8(len(addresses))}
	for _, s := range addresses {
		kept := appendAddress(nil, s)
		a.addresses = append(binary.AppendUvarint(a.addresses, uint64(len(kept))), kept...)
	}
	return a
}

// AppendSingle appends the address to buf if there is exactly one address, which is the usual case.
// It returns false if there are several addresses or none, or if the address is longer than 127
// bytes. Then use Targets.
func (a *Answer) AppendSingle(buf []byte) (_ []byte, ok bool) {
	if a.addressCount != 1 || a.addresses[0] == 0 || a.addresses[0] >= 0x80 {
		return buf, false
	}
	return appendUnpacked(buf, a.addresses[1:1+int(a.addresses[0])]), true
}

// Targets appends the addresses to dst. The bytes of the addresses are appended to buf, so the
// caller must not write to buf while it uses the targets. Suppressed addresses are included, so
// that each address has the same ordinal as in the profile.
func (a *Answer) Targets(dst []notify.Target, buf []byte) (targets []notify.Target, bytes []byte) {
	b := a.addresses
	for i := range a.addressCount {
		var kept []byte
		if size := int(b[0]); size < 0x80 { // the usual case
			kept, b = b[1:1+size], b[1+size:]
		} else {
			kept, b = cutField(b)
		}
		from := len(buf)
		buf = appendUnpacked(buf, kept)
		dst = append(dst, notify.Target{Addr: i, Of: a.addressCount, Address: buf[from:len(buf):len(buf)]})
	}
	return dst, buf
}

// DecideMany decides about one notification to many users at once. The parameter now is the time of
// the decision. DecideMany sets answers[i] for users[i]. Preferences do not apply to critical
// categories. DecideMany returns false if at least one answer is Unknown.
func (s *Snapshot) DecideMany(answers []Answer, users [][]byte, ch notify.Channel, cat notify.Category, now time.Time) (known bool) {
	known = true
	f := finders.Get().(*finder)
	defer finders.Put(f)
	defer f.release(min(len(users), keysPerBlock))
	for len(users) > 0 {
		n := min(len(users), keysPerBlock)
		s.users.findBlock(f, users[:n])
		for i, v := range f.found[:n] {
			if s.decodeAnswer(&answers[i], v, ch, cat, now); answers[i].addressCount == 0 && !s.isComplete(ch, users[i]) {
				answers[i].Verdict, known = Verdict{Action: Unknown}, false
			}
		}
		answers, users = answers[n:], users[n:]
	}
	return known
}

// lookUpOne is DecideMany for a single user.
func (s *Snapshot) lookUpOne(user []byte, ch notify.Channel, cat notify.Category, now time.Time) (a Answer) {
	v, _ := s.users.get(hashKey(user), user)
	if s.decodeAnswer(&a, v, ch, cat, now); a.addressCount == 0 && !s.isComplete(ch, user) {
		a.Verdict = Verdict{Action: Unknown}
	}
	return a
}

// Decide decides about a notification to one user. The parameter now is the time of the decision.
// Preferences do not apply to critical categories.
func (s *Snapshot) Decide(user []byte, ch notify.Channel, cat notify.Category, now time.Time) Verdict {
	return s.lookUpOne(user, ch, cat, now).Verdict
}

// Addresses appends the addresses of a user on a channel to dst; see Answer.Targets. For an Unknown
// user it appends nothing.
func (s *Snapshot) Addresses(dst []notify.Target, user []byte, ch notify.Channel) []notify.Target {
	a := s.lookUpOne(user, ch, notify.OTP, time.Time{})
	dst, _ = a.Targets(dst, nil)
	return dst
}

// decodeAnswer decodes the value v of a user into answer. A nil value means that the user has no
// profile.
func (s *Snapshot) decodeAnswer(answer *Answer, v []byte, ch notify.Channel, cat notify.Category, now time.Time) {
	*answer = Answer{}
	if len(v) == 0 {
		return
	}
	ruled := v[0] != 0
	v = v[1:]
	if ruled {
		if !cat.Critical() {
			answer.Verdict = s.decideRule(decodeRule(v), ch, cat, now)
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
			answer.addressCount, answer.addresses = v[1], v[2+n:end:end]
			return
		}
		v = v[end:]
	}
}

func (s *Snapshot) decideRule(r rule, ch notify.Channel, cat notify.Category, now time.Time) Verdict {
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

// Suppresses reports whether any address is suppressed. If it returns false, the caller need not
// call Suppressed for each address.
func (s *Snapshot) Suppresses() bool { return s.suppressed.len() > 0 }

// Suppressed reports whether any profile lists the address as dead or unsubscribed.
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

// apply makes p the user's current profile. Only one goroutine may call it at a time.
//
// Between the steps of apply, a reader may see the old and the new values together. So apply adds
// new suppressions before it removes old ones, and before it stores new addresses.
func (s *Snapshot) apply(p *engine.Profile) {
	user := []byte(p.User)
	h := hashKey(user)
	s.applySuppressed(h, user, p)
	s.users.put(h, user, s.packProfile(nil, p, s.keptChannels(user)))
}

func (s *Snapshot) applySuppressed(h uint64, user []byte, p *engine.Profile) {
	old, _ := s.suppressedBy.get(h, user)
	fresh := packSuppressed(nil, p)
	if string(old) == string(fresh) {
		return
	}
	s.suppressedBy.put(h, user, fresh)
	for b := fresh; len(b) > 0; {
		var a []byte
		a, b = cutField(b)
		s.suppressed.adjustCount(a, 1)
		s.suppressedCount.Add(1)
	}
	for b := old; len(b) > 0; {
		var a []byte
		a, b = cutField(b)
		s.suppressed.adjustCount(a, -1)
		s.suppressedCount.Add(-1)
	}
}

// packProfile appends the packed profile of a user. It includes only the addresses on the given
// channels. It returns nil if channels is empty, or if the user has no rule and no address. The
// format:
//
//	1 byte: 1 if a rule follows, otherwise 0
//	the rule
//	for each channel: its number, the number of addresses, the size of the list as a uvarint,
//	  and the list: {uvarint length, packed address}...
func (s *Snapshot) packProfile(b []byte, p *engine.Profile, channels channelSet) []byte {
	if channels == 0 {
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
		if len(list) == 0 || !channels.has(ch) {
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

// packSuppressed appends the addresses that a profile suppresses, in a fixed order.
func packSuppressed(b []byte, p *engine.Profile) []byte {
	list := make([]string, 0, len(p.Suppressed))
	for a := range p.Suppressed {
		if a != "" { // an empty key cannot be stored
			list = append(list, suppressKey(a))
		}
	}
	slices.Sort(list)
	for _, a := range slices.Compact(list) {
		b = append(binary.AppendUvarint(b, uint64(len(a))), a...)
	}
	return b
}

// suppressKey returns the form in which addresses are compared: e-mail addresses in lower case, all
// others unchanged.
func suppressKey(address string) string {
	if strings.Contains(address, "@") && !strings.HasPrefix(address, "apns:") && !strings.HasPrefix(address, "fcm:") {
		return strings.ToLower(address)
	}
	return address
}

func cutField(b []byte) (val, rest []byte) {
	size, n := binary.Uvarint(b)
	end := n + int(size)
	return b[n:end:end], b[end:]
}
