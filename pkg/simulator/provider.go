package simulator

import (
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Provider is one of the simulated services.
type Provider uint8

// The providers. OAuth is the token endpoint of FCM, and Callback is the receiver of trigger calls.
// Rules and latencies can name them, but they are not in the ledger, because they have no
// receivers. In a rule the zero value means all providers.
const (
	APNs Provider = iota + 1
	FCM
	Twilio
	SendGrid
	OAuth
	Callback
)

const (
	receiverProviders = 4 // number of providers with receivers
	allProviders      = 6
)

var providerNames = [...]string{"", "apns", "fcm", "twilio", "sendgrid", "oauth", "callback"}

func (p Provider) String() string {
	if int(p) < len(providerNames) {
		return providerNames[p]
	}
	return "unknown"
}

// Channel returns the channel of the provider. It returns 0 for OAuth and Callback.
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

// UnmarshalText reads a name. The empty name gives the zero value.
func (p *Provider) UnmarshalText(b []byte) error {
	for i, n := range providerNames {
		if n == string(b) {
			*p = Provider(i)
			return nil
		}
	}
	return notify.Invalid("bad_provider", "provider", fmt.Sprintf("must be apns, fcm, twilio, sendgrid, oauth or callback, not %q", b))
}

// Duration is a time.Duration that is written as text in JSON, for example "250ms".
type Duration time.Duration

// MarshalText writes the form of time.Duration.String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads the form of time.ParseDuration. It returns an error for a negative duration.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil || v < 0 {
		return notify.Invalid("bad_duration", "", fmt.Sprintf("%q is not a duration such as 250ms", b))
	}
	*d = Duration(v)
	return nil
}

// The functions below return addresses that the providers accept, for seed data and tests. The same
// n always gives the same address.

// DeviceToken returns APNs device token n: 64 hexadecimal digits.
func DeviceToken(n uint64) string {
	return fmt.Sprintf("%016x%016x%016x%016x", mixHash(n, 1), mixHash(n, 2), mixHash(n, 3), n)
}

// RegistrationToken returns FCM registration token n.
func RegistrationToken(n uint64) string {
	return fmt.Sprintf("f%020d:APA91b%016x%016x", n, mixHash(n, 4), mixHash(n, 5))
}

// Phone returns phone number n in E.164 form, with a country code that is not assigned. n must be
// below 10^10.
func Phone(n uint64) string { return fmt.Sprintf("+999%010d", n%1e10) }

// Mailbox returns e-mail address n, in a domain that never resolves.
func Mailbox(n uint64) string { return fmt.Sprintf("user%d@example.invalid", n) }

// mixHash is one step of SplitMix64 over two words. It is a cheap hash with an evenly spread
// output. Every random choice of the simulator uses it.
func mixHash(a, b uint64) uint64 {
	z := a*0x9e3779b97f4a7c15 + b*0xd1b54a32d192ed03 + 0x632be59bd9b4e019
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// unitInterval maps a hash to a number between 0 and 1. It never returns 0 or 1.
func unitInterval(h uint64) float64 { return (float64(h>>11) + 0.5) / (1 << 53) }
