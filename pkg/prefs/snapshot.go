package prefs

import (
	"encoding/binary"
	"slices"
	"strings"
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
)

func (a Action) String() string { return [...]string{"send", "opted_out", "quiet"}[a] }

// Verdict is the answer of Decide.
type Verdict struct {
	Action Action
	Until  int64 // Quiet: when the quiet hours end, ms since 1970
}

// Snapshot is every user's preferences and addresses as one process sees them
// now. Readers never wait; users who set nothing cost nothing.
//
// Measured with 5M users on 2 cores shared with other work (load 4): Decide
// 5.1 ns for users without an exception, 12.4 ns where 4% have one; Addresses
// 94 ns in touched blocks of 64, 280 ns one by one; 96 bytes a user with one
// address of 64 bytes, of which 11 are the user id that each hit is compared
// with: a hash alone could send to somebody else's device.
type Snapshot struct {
	zones      *zones
	rules      *set         // user -> rule, of users who set one
	addresses  table        // user -> {channel, count, {uvarint length, address}...}...
	suppressed *set         // address -> number of profiles that say so
	bySupp     table        // user -> {uvarint length, address}...: what the profile suppresses
	listed     atomic.Int64 // addresses in bySupp
}

func newSnapshot() *Snapshot {
	return &Snapshot{zones: newZones(), rules: newSet(), suppressed: newSet()}
}

func hashKey(b []byte) uint64 { return notify.HashUser(b) }

// Decide says what becomes of a notification to a user at now. userHash is
// notify.HashUser(user). Critical categories are always sent.
func (s *Snapshot) Decide(userHash uint64, user []byte, ch notify.Channel, cat notify.Category, now time.Time) Verdict {
	if cat.Critical() || !s.rules.filter.Load().may(userHash) {
		return Verdict{}
	}
	return s.decide(userHash, user, ch, cat, now)
}

func (s *Snapshot) decide(userHash uint64, user []byte, ch notify.Channel, cat notify.Category, now time.Time) Verdict {
	b, ok := s.rules.table.get(userHash, user)
	if !ok {
		return Verdict{}
	}
	r := decodeRule(b)
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

// Addresses appends the addresses of a user on a channel to dst. They alias
// memory that never changes. Suppressed ones are among them: ordinals are those
// of the profile.
func (s *Snapshot) Addresses(dst []notify.Target, user []byte, ch notify.Channel) []notify.Target {
	return s.AddressesHash(dst, hashKey(user), user, ch)
}

// AddressesHash is Addresses for a caller that has the hash.
func (s *Snapshot) AddressesHash(dst []notify.Target, userHash uint64, user []byte, ch notify.Channel) []notify.Target {
	b, _ := s.addresses.get(userHash, user)
	for len(b) > 0 {
		of, found := b[1], b[0] == byte(ch)
		b = b[2:]
		for i := range of {
			var a []byte
			if a, b = cut(b); found {
				dst = append(dst, notify.Target{Addr: i, Of: of, Address: a})
			}
		}
		if found {
			break
		}
	}
	return dst
}

// Touch reads what Addresses of these users will read first. Called for a
// block of some dozens before their lookups, it overlaps the cache misses. The
// result means nothing.
func (s *Snapshot) Touch(userHashes []uint64) (sum uint64) { return s.addresses.touch(userHashes) }

// Suppressed reports whether an address is known to be dead or has told a
// provider to stop, for whichever user.
func (s *Snapshot) Suppressed(ch notify.Channel, address []byte) bool {
	if s.suppressed.len() == 0 {
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
	if r := s.zones.ruleOf(p); r.isDefault() {
		s.rules.set(h, user, nil)
	} else {
		s.rules.set(h, user, r.append(nil))
	}
	s.addresses.set(h, user, packAddresses(nil, p))
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

// packAddresses appends the value of a user's addresses; nil when there are
// none.
func packAddresses(b []byte, p *engine.Profile) []byte {
	for _, ch := range notify.Channels {
		list := p.Addresses[ch.String()]
		if len(list) == 0 {
			continue
		}
		list = list[:min(len(list), 255)]
		b = append(b, byte(ch), byte(len(list)))
		for _, a := range list {
			b = append(binary.AppendUvarint(b, uint64(len(a))), a...)
		}
	}
	return b
}

// packSuppressed appends what a profile suppresses, in a fixed order; nil when
// it is nothing.
func packSuppressed(b []byte, p *engine.Profile) []byte {
	list := make([]string, 0, len(p.Suppressed))
	for a := range p.Suppressed {
		list = append(list, suppressKey(a))
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
