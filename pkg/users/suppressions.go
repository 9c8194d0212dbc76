package users

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

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
// notify.KindUnavailable until the profiles were loaded.
func (s *Service) Suppressions(ctx context.Context, q SuppressionQuery) (out []Suppression, next []byte, err error) {
	if !s.Loaded() {
		return nil, nil, notify.Unavailable("preferences", time.Second, nil)
	}
	afterUser, afterAddress, _ := strings.Cut(string(q.After), "\x00")
	users := s.suppressing(q, afterUser, maxProfilesLooked+1)
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

// suppressing returns the first users, in order and from one on, of whose profiles the
// snapshot knows suppressed addresses that the query may select; at most so many, 0:
// all. It goes over the whole list: some 50 ms for 500,000 addresses.
func (s *Service) suppressing(q SuppressionQuery, from string, most int) (users []string) {
	if q.User != "" {
		if q.User < from {
			return nil
		}
		return []string{q.User}
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
	return users
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
	for _, u := range s.suppressing(SuppressionQuery{User: user, Address: address}, "", 0) {
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
	return lifted, s.snap.Suppressed(channelOf(address), []byte(address)), nil
}
