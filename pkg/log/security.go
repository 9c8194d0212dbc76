package log

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Mechanism is how a client authenticates.
type Mechanism string

// The mechanisms. With SCRAM the password itself is never sent. The other two send what
// they have, and are refused without TLS.
const (
	SCRAM512    Mechanism = "SCRAM-SHA-512"
	SCRAM256    Mechanism = "SCRAM-SHA-256"
	PLAIN       Mechanism = "PLAIN"
	OAUTHBEARER Mechanism = "OAUTHBEARER" // the password is the token
)

// SASL says who we are. It prints as its mechanism and user.
type SASL struct {
	// Mechanism defaults to SCRAM512.
	Mechanism Mechanism
	User      string // required, but for OAUTHBEARER, whose token says it
	// Password is asked for at every authentication, so that a changed one needs
	// no restart. Required. It is a function, not a string, so
	// that no log, however it formats this, can show it.
	Password Secret `json:"-"`
}

// Secret returns a secret. It may be called from any goroutine.
type Secret func() (string, error)

// mechanism checks s. tls says whether connections are encrypted.
func (s *SASL) mechanism(tls bool) (sasl.Mechanism, error) {
	m := cmp.Or(s.Mechanism, SCRAM512)
	switch {
	case s.User == "" && m != OAUTHBEARER:
		return nil, errors.New("stream: SASL without a user")
	case s.Password == nil:
		return nil, errors.New("stream: SASL without a password")
	case !tls && (m == PLAIN || m == OAUTHBEARER):
		return nil, fmt.Errorf("stream: SASL mechanism %s sends the password: it needs tls.enabled", m)
	}
	password := func() (string, error) {
		pass, err := s.Password()
		if err != nil {
			return "", fmt.Errorf("stream: the password of %s: %w", cmp.Or(s.User, string(m)), err)
		}
		return pass, nil
	}
	if _, err := password(); err != nil {
		return nil, err
	}
	salted := func(context.Context) (scram.Auth, error) {
		pass, err := password()
		return scram.Auth{User: s.User, Pass: pass}, err
	}
	switch m {
	case SCRAM512:
		return scram.Sha512(salted), nil
	case SCRAM256:
		return scram.Sha256(salted), nil
	case PLAIN:
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			pass, err := password()
			return plain.Auth{User: s.User, Pass: pass}, err
		}), nil
	case OAUTHBEARER:
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			token, err := password()
			return oauth.Auth{Token: token}, err
		}), nil
	}
	return nil, fmt.Errorf("stream: SASL mechanism %q; there are %s, %s, %s and %s", s.Mechanism, SCRAM512, SCRAM256, PLAIN, OAUTHBEARER)
}

// String is the mechanism and the user.
func (s *SASL) String() string {
	if s == nil {
		return "none"
	}
	return strings.TrimSpace(string(cmp.Or(s.Mechanism, SCRAM512)) + " " + s.User)
}

// String is the brokers and how they are reached, without anything secret.
func (c Conn) String() string {
	s := strings.Join(c.Brokers, ",")
	if c.TLS.Enabled {
		s += " tls"
	}
	if c.SASL != nil {
		s += " " + c.SASL.String()
	}
	if c.Rack != "" {
		s += " rack " + c.Rack
	}
	return s
}

// LogValue is String.
func (c Conn) LogValue() slog.Value { return slog.StringValue(c.String()) }
