package users

import (
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

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
