package users

import (
	"errors"
	"fmt"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// MaxAddresses is how many addresses a user may have on one channel.
const MaxAddresses = 20

var errCritical = errors.New("the categories otp and alert cannot be muted")

// Validate returns nil if the profile is valid. Otherwise it returns a notify.KindInvalid error for
// the first rule that the profile breaks. The error contains the path of the field.
func (s *Service) Validate(p *engine.Profile) error {
	if rule := notify.CheckUserID(p.User); rule != "" {
		return notify.Invalid("bad_user", "user_id", rule)
	}
	names := make([]string, 0, len(p.Addresses))
	for name := range p.Addresses {
		names = append(names, name)
	}
	slices.Sort(names) // so that the same profile always gives the same error
	for _, name := range names {
		if err := validateAddresses(name, p.Addresses[name]); err != nil {
			return err
		}
	}
	for i, o := range p.OptOut {
		if _, err := parseOptOut(o); err != nil {
			code := "bad_opt_out"
			if errors.Is(err, errCritical) {
				code = "cannot_mute"
			}
			return notify.Invalid(code, fmt.Sprintf("opt_out[%d]", i), err.Error())
		}
	}
	if _, err := s.snap.zones.index(p.TimeZone); err != nil {
		return notify.Invalid("bad_time_zone", "time_zone", "must be the IANA name of a time zone, like Europe/Berlin")
	}
	if q := p.QuietHours; q != nil {
		from, err := parseClock(q.From)
		if err != nil {
			return notify.Invalid("bad_quiet_hours", "quiet_hours.from", err.Error())
		}
		to, err := parseClock(q.To)
		if err != nil {
			return notify.Invalid("bad_quiet_hours", "quiet_hours.to", err.Error())
		}
		if from == to {
			return notify.Invalid("bad_quiet_hours", "quiet_hours.to", "quiet hours must not end at the time at which they begin")
		}
	}
	return nil
}

func validateAddresses(channel string, list []string) error {
	ch, ok := notify.ParseChannel(channel)
	if !ok {
		return notify.Invalid("bad_channel", "addresses."+channel, "there is no such channel; use push, sms or email")
	}
	if len(list) > MaxAddresses {
		return notify.Invalid("too_many_addresses", "addresses."+channel, fmt.Sprintf("there are %d addresses; a user may have at most %d on a channel", len(list), MaxAddresses))
	}
	for i, a := range list {
		field := fmt.Sprintf("addresses.%s[%d]", channel, i)
		if err := ValidateAddress(ch, a); err != nil {
			return notify.Invalid("bad_address", field, err.Error())
		}
		if slices.Contains(list[:i], a) {
			return notify.Invalid("duplicate_address", field, "this address is listed twice")
		}
	}
	return nil
}
