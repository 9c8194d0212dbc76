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

// Mechanism is the method by which a client authenticates.
type Mechanism string

// The mechanisms. SCRAM never sends the password. PLAIN and OAUTHBEARER send it, so they are refused
// without TLS.
const (
	SCRAM512    Mechanism = "SCRAM-SHA-512"
	SCRAM256    Mechanism = "SCRAM-SHA-256"
	PLAIN       Mechanism = "PLAIN"
	OAUTHBEARER Mechanism = "OAUTHBEARER" // the password is the token
)

// SASL holds our credentials. Its String returns the mechanism and the user, without the password.
type SASL struct {
	// Mechanism defaults to SCRAM512.
	Mechanism Mechanism
	User      string // required, except for OAUTHBEARER: its token contains the user
	// Password is called at every authentication, so that a changed password needs no restart. It is
	// required. It is a function and not a string, so that no log line can print the password.
	Password Secret `json:"-"`
}

// Secret is a function that returns a secret. It may be called from any goroutine.
type Secret func() (string, error)

// mechanism checks s and returns the mechanism of the client library. encrypted is true if connections
// use TLS.
func (s *SASL) mechanism(encrypted bool) (sasl.Mechanism, error) {
	m := cmp.Or(s.Mechanism, SCRAM512)
	switch {
	case s.User == "" && m != OAUTHBEARER:
		return nil, errors.New("log: SASL needs a user")
	case s.Password == nil:
		return nil, errors.New("log: SASL needs a password")
	case !encrypted && (m == PLAIN || m == OAUTHBEARER):
		return nil, fmt.Errorf("log: the SASL mechanism %s sends the password, so TLS must be enabled (tls.enabled)", m)
	}
	password := func() (string, error) {
		pass, err := s.Password()
		if err != nil {
			return "", fmt.Errorf("log: reading the password of %s: %w", cmp.Or(s.User, string(m)), err)
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
	return nil, fmt.Errorf("log: the SASL mechanism must be %s, %s, %s or %s, not %q", SCRAM512, SCRAM256, PLAIN, OAUTHBEARER, s.Mechanism)
}

// String returns the mechanism and the user.
func (s *SASL) String() string {
	if s == nil {
		return "none"
	}
	return strings.TrimSpace(string(cmp.Or(s.Mechanism, SCRAM512)) + " " + s.User)
}

// String returns the brokers and the connection settings, without secrets.
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

// LogValue returns the text of String, so that log lines contain no secrets.
func (c Conn) LogValue() slog.Value { return slog.StringValue(c.String()) }
