package users

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Suppression is one entry of the suppression list: the user whose profile has it, the address, and
// the error code of the provider.
type Suppression struct {
	User    string
	Channel notify.Channel
	Address string
	Code    string
}

// SuppressionQuery selects entries. An empty field matches all entries.
type SuppressionQuery struct {
	User    string
	Address string // as stored; upper and lower case of an e-mail address are equal
	Channel notify.Channel
	Code    string
	After   []byte // the cursor that the previous page returned
	Limit   int    // at least 1
}

// maxProfilesLooked is how many profiles one page reads at most. If few entries match the query,
// the page is short, and its cursor leads to the rest.
const maxProfilesLooked = 1000

// Suppressions returns at most q.Limit entries, ordered by user and address, and the cursor of the
// next page. A nil cursor means that this page is the last. A page with a cursor may be short or
// even empty. Changes by other processes appear within a second. With Config.Shares, Suppressions
// reads the store. Otherwise it uses the profiles in memory, and returns notify.KindUnavailable
// until they are loaded.
func (s *Service) Suppressions(ctx context.Context, q SuppressionQuery) (out []Suppression, next []byte, err error) {
	afterUser, afterAddress, _ := strings.Cut(string(q.After), "\x00")
	users, err := s.usersSuppressing(ctx, q, afterUser, maxProfilesLooked+1)
	if err != nil {
		return nil, nil, err
	}
	more := len(users) > maxProfilesLooked
	for _, user := range users[:min(len(users), maxProfilesLooked)] {
		p, ok, err := s.store.Get(ctx, user)
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			continue
		}
		list := q.entries(&p)
		for _, e := range list {
			if user == afterUser && e.Address <= afterAddress {
				continue
			}
			if len(out) == q.Limit {
				last := &out[len(out)-1]
				return out, []byte(last.User + "\x00" + last.Address), nil
			}
			out = append(out, e)
		}
	}
	if more { // the cursor is after all entries of the last user that was read
		return out, []byte(users[maxProfilesLooked-1] + "\x00\xff"), nil
	}
	return out, nil, nil
}

// entries returns the entries of a profile that match the query, ordered by address.
func (q *SuppressionQuery) entries(p *engine.Profile) (list []Suppression) {
	for a, code := range p.Suppressed {
		e := Suppression{p.User, channelOf(a), a, code}
		if (q.Address == "" || suppressKey(a) == suppressKey(q.Address)) && (q.Channel == 0 || e.Channel == q.Channel) && (q.Code == "" || e.Code == q.Code) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b Suppression) int { return cmp.Compare(a.Address, b.Address) })
	return list
}

// channelOf returns the channel to which an address belongs. The form of the address shows the
// channel.
func channelOf(address string) notify.Channel {
	switch {
	case strings.HasPrefix(address, "apns:"), strings.HasPrefix(address, "fcm:"):
		return notify.Push
	case strings.Contains(address, "@"):
		return notify.Email
	}
	return notify.SMS
}

// usersSuppressing returns users whose profiles suppress addresses that may match the query. It
// returns users in order, beginning with the user firstUser, and at most limit users. If limit is
// 0, it returns all users. With Config.Shares it reads the store. Otherwise it scans the list in
// the snapshot, which takes about 50 ms for 500,000 addresses.
func (s *Service) usersSuppressing(ctx context.Context, q SuppressionQuery, firstUser string, limit int) (users []string, err error) {
	switch {
	case q.User != "" && q.User < firstUser:
		return nil, nil
	case q.User != "":
		return []string{q.User}, nil
	case s.cfg.Shares:
		return s.usersSuppressingInStore(ctx, q, firstUser, limit)
	case !s.Loaded():
		return nil, notify.Unavailable("preferences", time.Second, nil)
	}
	key := []byte(suppressKey(q.Address))
	for i := range s.snap.suppressedBy.shards {
		st := s.snap.suppressedBy.shards[i].state.Load()
		if st == nil {
			continue
		}
		st.each(func(_ uint64, user, list []byte) {
			if string(user) < firstUser || len(key) > 0 && !containsAddress(list, key) {
				return
			}
			users = append(users, string(user))
		})
		if limit > 0 && len(users) > 64*limit { // bound the memory
			slices.Sort(users)
			users = users[:limit]
		}
	}
	slices.Sort(users)
	if limit > 0 && len(users) > limit {
		users = users[:limit]
	}
	return users, nil
}

// errEnough makes eachSuppressing stop early.
var errEnough = errors.New("enough")

// usersSuppressingInStore does the work of usersSuppressing with Config.Shares: it reads the store.
func (s *Service) usersSuppressingInStore(ctx context.Context, q SuppressionQuery, firstUser string, limit int) (users []string, err error) {
	if firstUser != "" {
		users = append(users, firstUser) // the store begins after this user, who may have more entries
	}
	err = s.eachSuppressing(ctx, firstUser, func(p *engine.Profile) error {
		if len(q.entries(p)) > 0 {
			users = append(users, p.User)
		}
		if limit > 0 && len(users) >= limit {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return users, err
}

// containsAddress reports whether a list written by packSuppressed contains an address.
func containsAddress(packed, key []byte) bool {
	for len(packed) > 0 {
		var a []byte
		if a, packed = cutField(packed); bytes.Equal(a, key) {
			return true
		}
	}
	return false
}

// LiftSuppression removes an address from the suppression list of one user's profile. If user is
// empty, it removes the address from all profiles that list the address, as far as this process
// knows them. The result lifted is the number of these profiles. If another profile still lists the
// address, stillListed is true, and the address stays suppressed for all users. If a provider later
// reports the address as dead, it is added again.
func (s *Service) LiftSuppression(ctx context.Context, user, address string) (lifted int, stillListed bool, err error) {
	key := suppressKey(address)
	list, err := s.usersSuppressing(ctx, SuppressionQuery{User: user, Address: address}, "", 0)
	if err != nil {
		return 0, true, err
	}
	for _, u := range list {
		had := false
		_, err := s.updateProfile(ctx, u, func(p *engine.Profile) error {
			rest := map[string]string{}
			for a, code := range p.Suppressed {
				if suppressKey(a) != key {
					rest[a] = code
				}
			}
			if had = len(rest) < len(p.Suppressed); !had {
				return errUnchanged
			}
			p.Suppressed = rest
			return notify.BeforeAct(ctx)
		})
		if err != nil {
			return lifted, true, err
		}
		if had {
			lifted++
		}
	}
	if !s.cfg.Shares {
		return lifted, s.snap.Suppressed(channelOf(address), []byte(address)), nil
	}
	list, err = s.usersSuppressing(ctx, SuppressionQuery{Address: address}, "", 1)
	return lifted, err != nil || len(list) > 0, err
}

// Unreachable returns why a notification to a user on a channel would be suppressed now. It returns
// "opted_out", or "suppressed_address" if every address of the profile is suppressed. It returns ""
// if neither reason is known. For a user that is not in the memory of this process it reads the
// store.
func (s *Service) Unreachable(ctx context.Context, user string, ch notify.Channel, cat notify.Category) (string, error) {
	a, dead := s.snap.lookUpOne([]byte(user), ch, cat, time.Time{}), map[string]bool{}
	if a.Action == Unknown {
		p, _, err := s.store.Get(ctx, user)
		if err != nil {
			return "", err
		}
		for address := range p.Suppressed {
			dead[suppressKey(address)] = true
		}
		s.snap.decodeAnswer(&a, s.snap.packProfile(nil, &p, allChannels), ch, cat, time.Time{})
	}
	if a.Action == OptedOut {
		return "opted_out", nil
	}
	targets, _ := a.Targets(nil, nil)
	for i := range targets {
		if address := targets[i].Address; !s.snap.Suppressed(ch, address) && !dead[suppressKey(string(address))] {
			return "", nil
		}
	}
	if len(targets) == 0 {
		return "", nil
	}
	return "suppressed_address", nil
}

// maxForeign is how many dead addresses a profile may list that are not addresses of the user.
const maxForeign = 100

// Suppress stores in the user's profile that an address is dead, and the reason. The address is
// then suppressed at once for all users. A second call changes nothing.
//
// Requests may name any address, and providers may report any address as dead, so the list is
// bounded. Suppress always stores an address that is in the profile; a profile has at most
// MaxAddresses addresses on a channel. Suppress stores other addresses only while the profile lists
// fewer than 100 of them and the whole list has fewer than MaxSuppressed addresses. Above these
// limits it stores nothing. The provider will then refuse the next message to the address again.
//
// An address of 64 bytes needs about 200 bytes of memory. Its bytes are stored twice: once in the
// list of users and once in the list of addresses. The rest is overhead. An address of 512 bytes
// for a user id of 128 bytes needs at most 1,400 bytes. So with the default limit, requests can
// fill at most 100 MB, or 700 MB with the longest addresses.
func (s *Service) Suppress(ctx context.Context, user string, ch notify.Channel, address, reason string) error {
	if err := checkSuppressUser(user); err != nil {
		return err
	}
	// Do not call ValidateAddress here: an address that an earlier version accepted must still be
	// suppressed.
	if _, ok := notify.ParseChannel(ch.String()); !ok {
		return notify.Invalid("bad_channel", "channel", "the channel must be push, sms or email")
	}
	if address == "" || len(address) > notify.MaxAddress || !utf8.ValidString(address) {
		return notify.Invalid("bad_address", "address", errAddressSize.Error())
	}
	_, err := s.updateProfile(ctx, user, func(p *engine.Profile) error {
		if _, ok := p.Suppressed[address]; ok || !s.hasRoomFor(p, ch, address) {
			return errUnchanged
		}
		m := make(map[string]string, len(p.Suppressed)+1)
		for a, why := range p.Suppressed {
			m[a] = why
		}
		m[address] = reason
		p.Suppressed = m
		return nil
	})
	return err
}

// Unsubscribe opts a user out of marketing and digest on the channel, after the user told a
// provider to stop. The other categories are still sent, and the address is not suppressed. A
// second call changes nothing. The user may opt in again with Put.
func (s *Service) Unsubscribe(ctx context.Context, user string, ch notify.Channel) error {
	if err := checkSuppressUser(user); err != nil {
		return err
	}
	if _, ok := notify.ParseChannel(ch.String()); !ok {
		return notify.Invalid("bad_channel", "channel", "there is no such channel; use push, sms or email")
	}
	_, err := s.updateProfile(ctx, user, func(p *engine.Profile) error {
		muted := s.snap.zones.ruleOf(p).muted
		fresh := slices.Clone(p.OptOut)
		for _, cat := range []notify.Category{notify.Marketing, notify.Digest} {
			if muted&muteBit(ch, cat) == 0 {
				fresh = append(fresh, ch.String()+"/"+cat.String())
			}
		}
		if len(fresh) == len(p.OptOut) {
			return errUnchanged
		}
		p.OptOut = fresh
		return nil
	})
	return err
}

func checkSuppressUser(user string) error {
	if user == "" || len(user) > notify.MaxUserID {
		return notify.Invalid("bad_user", "user_id", fmt.Sprintf("a user id must have 1 to %d bytes", notify.MaxUserID))
	}
	return nil
}

// hasRoomFor reports whether this dead address may be added to the profile.
func (s *Service) hasRoomFor(p *engine.Profile, ch notify.Channel, address string) bool {
	own := func(a string) bool {
		for _, list := range p.Addresses {
			if slices.ContainsFunc(list, func(b string) bool { return suppressKey(a) == suppressKey(b) }) {
				return true
			}
		}
		return false
	}
	if own(address) {
		return true
	}
	foreign := 0
	for a := range p.Suppressed {
		if !own(a) {
			foreign++
		}
	}
	if s.snap.suppressedCount.Load() < int64(s.cfg.MaxSuppressed) && foreign < maxForeign {
		return true
	}
	s.fullLog.Do(func() {
		s.cfg.Log.Warn("dead addresses that are not in the user's profile are not stored: the limit for the profile or for all users is reached", "channel", ch.String(), "held", s.snap.suppressedCount.Load())
	})
	return false
}
