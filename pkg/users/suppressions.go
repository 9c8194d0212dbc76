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

// Suppression is one entry of the suppression list: the profile that says so, the
// address, and the provider's code.
type Suppression struct {
	User    string
	Channel notify.Channel
	Address string
	Code    string
}

// SuppressionQuery selects entries. An empty field selects all.
type SuppressionQuery struct {
	User    string
	Address string // as it is stored, or with another case where it is a mailbox
	Channel notify.Channel
	Code    string
	After   []byte // place where an earlier page ended
	Limit   int    // at least 1
}

// maxProfilesLooked is how many profiles one page reads: a filter that few entries
// pass answers a short page and where to go on.
const maxProfilesLooked = 1000

// Suppressions returns entries by user and address, at most q.Limit, and the place to
// go on; nil at the end. A page may be short, even empty, and not be the last. It
// knows of changes of other processes within a second. It returns
// notify.KindUnavailable until the profiles were loaded; with Config.Shares it asks the
// store.
func (s *Service) Suppressions(ctx context.Context, q SuppressionQuery) (out []Suppression, next []byte, err error) {
	afterUser, afterAddress, _ := strings.Cut(string(q.After), "\x00")
	users, err := s.suppressing(ctx, q, afterUser, maxProfilesLooked+1)
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
	if more { // behind all entries of the last user that was looked at
		return out, []byte(users[maxProfilesLooked-1] + "\x00\xff"), nil
	}
	return out, nil, nil
}

// entries returns those of a profile that the query selects, by address.
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

// channelOf tells an address's channel by its form.
func channelOf(address string) notify.Channel {
	switch {
	case strings.HasPrefix(address, "apns:"), strings.HasPrefix(address, "fcm:"):
		return notify.Push
	case strings.Contains(address, "@"):
		return notify.Email
	}
	return notify.SMS
}

// suppressing returns the first users, in order and from one on, whose profiles suppress
// addresses that the query may select; at most so many, 0: all. Where users are shared
// it asks the store, else it goes over the list in the snapshot: some 50 ms for 500,000
// addresses.
func (s *Service) suppressing(ctx context.Context, q SuppressionQuery, from string, most int) (users []string, err error) {
	switch {
	case q.User != "" && q.User < from:
		return nil, nil
	case q.User != "":
		return []string{q.User}, nil
	case s.cfg.Shares:
		return s.storedSuppressing(ctx, q, from, most)
	case !s.Loaded():
		return nil, notify.Unavailable("preferences", time.Second, nil)
	}
	key := []byte(suppressKey(q.Address))
	for i := range s.snap.bySupp.shards {
		st := s.snap.bySupp.shards[i].state.Load()
		if st == nil {
			continue
		}
		st.each(func(_ uint64, user, list []byte) {
			if string(user) < from || len(key) > 0 && !lists(list, key) {
				return
			}
			users = append(users, string(user))
		})
		if most > 0 && len(users) > 64*most { // keep what is held small
			slices.Sort(users)
			users = users[:most]
		}
	}
	slices.Sort(users)
	if most > 0 && len(users) > most {
		users = users[:most]
	}
	return users, nil
}

// errEnough ends a walk over the store.
var errEnough = errors.New("enough")

// storedSuppressing is suppressing of the store.
func (s *Service) storedSuppressing(ctx context.Context, q SuppressionQuery, from string, most int) (users []string, err error) {
	if from != "" {
		users = append(users, from) // the store begins behind it
	}
	err = s.eachSuppressing(ctx, from, func(p *engine.Profile) error {
		if len(q.entries(p)) > 0 {
			users = append(users, p.User)
		}
		if most > 0 && len(users) >= most {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return users, err
}

// lists reports whether packSuppressed wrote an address.
func lists(packed, key []byte) bool {
	for len(packed) > 0 {
		var a []byte
		if a, packed = cut(packed); bytes.Equal(a, key) {
			return true
		}
	}
	return false
}

// Lift takes an address off the suppression list: off the user's profile, or off all
// that this process knows to list it when user is empty. It returns how many listed
// it, and whether another profile still does: then it stays suppressed for all. A
// provider that calls the address dead again puts it back.
func (s *Service) Lift(ctx context.Context, user, address string) (lifted int, still bool, err error) {
	key := suppressKey(address)
	list, err := s.suppressing(ctx, SuppressionQuery{User: user, Address: address}, "", 0)
	if err != nil {
		return 0, true, err
	}
	for _, u := range list {
		had := false
		_, err := s.change(ctx, u, func(p *engine.Profile) error {
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
	list, err = s.suppressing(ctx, SuppressionQuery{Address: address}, "", 1)
	return lifted, err != nil || len(list) > 0, err
}

// Unreachable returns why a notification to a user on a channel would be suppressed now:
// "opted_out", "suppressed_address" if every address of the profile is, or "" if neither
// is known. It asks the store for a user that this process does not hold.
func (s *Service) Unreachable(ctx context.Context, user string, ch notify.Channel, cat notify.Category) (string, error) {
	a, dead := s.snap.find([]byte(user), ch, cat, time.Time{}), map[string]bool{}
	if a.Action == Unknown {
		p, _, err := s.store.Get(ctx, user)
		if err != nil {
			return "", err
		}
		for address := range p.Suppressed {
			dead[suppressKey(address)] = true
		}
		s.snap.answer(&a, s.snap.packProfile(nil, &p, allChannels), ch, cat, time.Time{})
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

// maxForeign is how many dead addresses a profile takes that are not its own.
const maxForeign = 100

// Suppress stores in the user's profile that an address is dead, and why; it binds at once, for all users. Again is the same as once.
//
// Requests may name any address, and providers call any of them dead, so what is
// stored of that is bounded: an address that the profile lists is always taken,
// MaxAddresses a channel at most; others up to 100 a profile, and while fewer
// than MaxSuppressed are held of all. Beyond, nothing is stored: the provider
// refuses the next message to it again. An address of 64 bytes takes some 200 of
// memory, twice its length in the lists of users and of addresses and the rest
// around them, at most 1,400 one of 512 bytes for a user id of 128; so the default
// bounds what requests can fill to 100 MB of such, 700 MB of the longest.
func (s *Service) Suppress(ctx context.Context, user string, ch notify.Channel, address, reason string) error {
	if err := checkSuppressUser(user); err != nil {
		return err
	}
	// Not ValidateAddress: what an earlier version took must still be stopped.
	if _, ok := notify.ParseChannel(ch.String()); !ok || address == "" || len(address) > notify.MaxAddress || !utf8.ValidString(address) {
		return notify.Invalid("bad_address", "address", errAddressSize.Error())
	}
	_, err := s.change(ctx, user, func(p *engine.Profile) error {
		if _, ok := p.Suppressed[address]; ok || !s.takes(p, ch, address) {
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

// Unsubscribe opts a user who told a provider to stop out of marketing and digest on
// the channel. Codes, alerts and what the user did go on, and the address is not
// suppressed. Again is the same as once; the user may opt in again by Put.
func (s *Service) Unsubscribe(ctx context.Context, user string, ch notify.Channel) error {
	if err := checkSuppressUser(user); err != nil {
		return err
	}
	if _, ok := notify.ParseChannel(ch.String()); !ok {
		return notify.Invalid("bad_channel", "channel", "no channel has this name")
	}
	_, err := s.change(ctx, user, func(p *engine.Profile) error {
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
		return notify.Invalid("bad_user", "user_id", fmt.Sprintf("a user id has 1 to %d bytes", notify.MaxUserID))
	}
	return nil
}

// takes reports whether there is room for another dead address.
func (s *Service) takes(p *engine.Profile, ch notify.Channel, address string) bool {
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
	if s.snap.listed.Load() < int64(s.cfg.MaxSuppressed) && foreign < maxForeign {
		return true
	}
	s.full.Do(func() {
		s.cfg.Log.Warn("dead addresses that no profile lists are not kept any more", "channel", ch.String(), "held", s.snap.listed.Load())
	})
	return false
}
