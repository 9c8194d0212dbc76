package prefs

import (
	"errors"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// MaxAddresses is how many addresses a user may have on a channel.
const MaxAddresses = 20

var errCritical = errors.New("otp and alert cannot be muted")

// Validate reports the first rule a profile breaks, as notify.Invalid with the
// field's path.
func (s *Service) Validate(p *engine.Profile) error {
	switch {
	case p.User == "" || len(p.User) > notify.MaxUserID:
		return notify.Invalid("bad_user", "user_id", fmt.Sprintf("a user id has 1 to %d bytes", notify.MaxUserID))
	case !utf8.ValidString(p.User):
		return notify.Invalid("bad_user", "user_id", "a user id is UTF-8")
	}
	names := make([]string, 0, len(p.Addresses))
	for name := range p.Addresses {
		names = append(names, name)
	}
	slices.Sort(names) // the same error each time
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
		return notify.Invalid("bad_time_zone", "time_zone", "a time zone is an IANA name, like Europe/Berlin")
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
			return notify.Invalid("bad_quiet_hours", "quiet_hours.to", "quiet hours end at another time than they begin")
		}
	}
	return nil
}

func validateAddresses(channel string, list []string) error {
	ch, ok := notify.ParseChannel(channel)
	if !ok {
		return notify.Invalid("bad_channel", "addresses."+channel, "no channel has this name")
	}
	if len(list) > MaxAddresses {
		return notify.Invalid("too_many_addresses", "addresses."+channel, fmt.Sprintf("a user has at most %d addresses a channel", MaxAddresses))
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

// ValidateAddress reports what is wrong with an address of a channel. Its
// errors do not carry the address.
func ValidateAddress(ch notify.Channel, a string) error {
	if len(a) > notify.MaxAddress || !utf8.ValidString(a) {
		return fmt.Errorf("an address is UTF-8 of at most %d bytes", notify.MaxAddress)
	}
	switch ch {
	case notify.Push:
		token, ok := strings.CutPrefix(a, "apns:")
		if !ok {
			token, ok = strings.CutPrefix(a, "fcm:")
		}
		if !ok || token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return errors.New("a push address is apns: or fcm: and a token")
		}
	case notify.SMS:
		digits, ok := strings.CutPrefix(a, "+")
		if !ok || len(digits) < 2 || len(digits) > 15 || digits[0] == '0' || strings.Trim(digits, "0123456789") != "" {
			return errors.New("a phone number is E.164: + and 2 to 15 digits, the first not 0")
		}
	case notify.Email:
		m, err := mail.ParseAddress(a)
		if err != nil || m.Address != a || len(a) > 254 {
			return errors.New("an e-mail address is local@domain, without a name")
		}
		if _, domain, _ := strings.Cut(a, "@"); strings.ContainsAny(domain, " ()<>") {
			return errors.New("an e-mail address ends with a domain")
		}
	default:
		return errors.New("no such channel")
	}
	return nil
}
