package log

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Mechanism is how a user proves to know the password.
type Mechanism string

// The mechanisms: with either the password itself is never sent.
const (
	SCRAM512 Mechanism = "SCRAM-SHA-512"
	SCRAM256 Mechanism = "SCRAM-SHA-256"
)

// SASL says who we are. It prints as its mechanism and user.
type SASL struct {
	// Mechanism defaults to SCRAM512.
	Mechanism Mechanism
	User      string // required
	// Password is asked for at every authentication, so that a changed one needs
	// no restart. Required. It is a function, not a string, so
	// that no log, however it formats this, can show it.
	Password Secret `json:"-"`
}

// Secret returns a secret. It may be called from any goroutine.
type Secret func() (string, error)

func (s *SASL) mechanism() (sasl.Mechanism, error) {
	switch {
	case s.User == "":
		return nil, errors.New("stream: SASL without a user")
	case s.Password == nil:
		return nil, errors.New("stream: SASL without a password")
	}
	if _, err := s.Password(); err != nil {
		return nil, fmt.Errorf("stream: the password of %s: %w", s.User, err)
	}
	auth := func(context.Context) (scram.Auth, error) {
		pass, err := s.Password()
		if err != nil {
			return scram.Auth{}, fmt.Errorf("the password of %s: %w", s.User, err)
		}
		return scram.Auth{User: s.User, Pass: pass}, nil
	}
	switch s.Mechanism {
	case SCRAM512, "":
		return scram.Sha512(auth), nil
	case SCRAM256:
		return scram.Sha256(auth), nil
	}
	return nil, fmt.Errorf("stream: SASL mechanism %q; there are %s and %s", s.Mechanism, SCRAM512, SCRAM256)
}

// String is the mechanism and the user.
func (s *SASL) String() string {
	if s == nil {
		return "none"
	}
	m := s.Mechanism
	if m == "" {
		m = SCRAM512
	}
	return string(m) + " " + s.User
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
