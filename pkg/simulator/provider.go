package simulator

import (
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Provider is one of the services simulated here.
type Provider uint8

// The providers. OAuth is FCM's token endpoint, Callback the receiver of
// triggers: rules and latency can name them, but they have no receivers, so the
// ledger never does. The zero value, in a rule, means all of them.
const (
	APNs Provider = iota + 1
	FCM
	Twilio
	SendGrid
	OAuth
	Callback
)

const (
	providers    = 4 // those with receivers
	allProviders = 6
)

var providerNames = [...]string{"", "apns", "fcm", "twilio", "sendgrid", "oauth", "callback"}

func (p Provider) String() string {
	if int(p) < len(providerNames) {
		return providerNames[p]
	}
	return "unknown"
}

// Channel is the channel the provider carries; 0 for OAuth.
func (p Provider) Channel() notify.Channel {
	switch p {
	case APNs, FCM:
		return notify.Push
	case Twilio:
		return notify.SMS
	case SendGrid:
		return notify.Email
	}
	return 0
}

// MarshalText writes the name.
func (p Provider) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads a name; the empty one is the zero value.
func (p *Provider) UnmarshalText(b []byte) error {
	for i, n := range providerNames {
		if n == string(b) {
			*p = Provider(i)
			return nil
		}
	}
	return notify.Invalid("bad_provider", "provider", fmt.Sprintf("%q is not apns, fcm, twilio, sendgrid, oauth or callback", b))
}

// Duration is a time.Duration written as text ("250ms") in JSON.
type Duration time.Duration

// MarshalText writes it as time.Duration does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads, and not less than zero.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil || v < 0 {
		return notify.Invalid("bad_duration", "", fmt.Sprintf("%q is not a duration such as 250ms", b))
	}
	*d = Duration(v)
	return nil
}

// Addresses that pass the checks of their provider, for seed data and tests: the
// same n gives the same address.

// DeviceToken returns APNs device token n: 64 hexadecimal digits.
func DeviceToken(n uint64) string {
	return fmt.Sprintf("%016x%016x%016x%016x", mix(n, 1), mix(n, 2), mix(n, 3), n)
}

// RegistrationToken returns FCM registration token n.
func RegistrationToken(n uint64) string {
	return fmt.Sprintf("f%020d:APA91b%016x%016x", n, mix(n, 4), mix(n, 5))
}

// Phone returns phone number n in E.164, of a country code that is not assigned.
// n counts to 10^10.
func Phone(n uint64) string { return fmt.Sprintf("+999%010d", n%1e10) }

// Mailbox returns e-mail address n, in a domain that never resolves.
func Mailbox(n uint64) string { return fmt.Sprintf("user%d@example.invalid", n) }

// mix is one step of SplitMix64 over two words: a cheap hash whose output is
// spread evenly, from which every random choice here is drawn.
func mix(a, b uint64) uint64 {
	z := a*0x9e3779b97f4a7c15 + b*0xd1b54a32d192ed03 + 0x632be59bd9b4e019
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// unit maps a hash to (0, 1).
func unit(h uint64) float64 { return (float64(h>>11) + 0.5) / (1 << 53) }
