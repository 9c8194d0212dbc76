package server

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
)

// Signer signs tokens, for development and for a single machine. In larger installations an
// identity provider signs the tokens instead.
type Signer struct {
	method jwt.SigningMethod
	key    any
	kid    string
}

// TokenSpec is the content of a token.
type TokenSpec struct {
	Caller   string // claim sub of the token
	Scopes   []string
	Users    string // prefix of the user ids that the token may use; empty: all user ids
	Issuer   string
	Audience string
	TTL      time.Duration
	Now      time.Time
}

// NewSigningKey returns a new ES256 key as a PKCS #8 PEM file. AuthConfig.KeyFile accepts the same
// file. Store the file with mode 0600.
func NewSigningKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// OpenSigner reads a private key in PEM form (P-256, RSA or Ed25519). If the file has no PEM block,
// it reads an HS256 secret. It returns an error if other users can read the file.
func OpenSigner(path string) (*Signer, error) {
	data, err := secrets.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s, err := NewSigner(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// NewSigner is like OpenSigner, for the contents of the file.
func NewSigner(data []byte) (*Signer, error) {
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		key, err := parseBlock(block)
		if err != nil {
			return nil, err
		}
		if private, ok := key.(crypto.Signer); ok {
			return signerOf(private)
		}
	}
	secret := bytes.TrimSpace(data)
	if bytes.HasPrefix(secret, []byte("-----BEGIN")) || len(secret) < minSecret {
		return nil, fmt.Errorf("the file is neither a PEM private key nor a secret of at least %d bytes", minSecret)
	}
	return &Signer{method: jwt.SigningMethodHS256, key: secret}, nil
}

func signerOf(key crypto.Signer) (*Signer, error) {
	alg := algorithm(key.Public())
	if alg == "" {
		return nil, fmt.Errorf("the key is %s, which cannot sign tokens: use RSA of at least 2048 bits, P-256 or Ed25519", keyText(key.Public()))
	}
	kid, err := thumbprint(key.Public())
	if err != nil {
		return nil, err
	}
	return &Signer{method: jwt.GetSigningMethod(alg), key: key, kid: kid}, nil
}

// Sign returns a token.
func (s *Signer) Sign(t TokenSpec) (string, error) {
	if !checkCaller(t.Caller) {
		return "", notify.Invalid("bad_caller", "caller", "must have 1 to 128 characters: letters, digits and ._:@/|+-")
	}
	for _, scope := range t.Scopes {
		if scopeBit(scope) == 0 {
			return "", notify.Invalid("bad_scope", "scope", fmt.Sprintf("%q is not a scope; scopes are %s", scope, strings.Join(api.Scopes[:], ", ")))
		}
	}
	var users *string
	if t.Users != "" {
		if rule := notify.CheckUserID(t.Users); rule != "" {
			return "", notify.Invalid("bad_user_id", "users", rule)
		}
		users = &t.Users
	}
	token := jwt.NewWithClaims(s.method, claims{
		Users: users,
		RegisteredClaims: jwt.RegisteredClaims{
			Subject: t.Caller, Issuer: t.Issuer, Audience: jwt.ClaimStrings{t.Audience},
			IssuedAt: jwt.NewNumericDate(t.Now), ExpiresAt: jwt.NewNumericDate(t.Now.Add(t.TTL)),
		},
		Scope: strings.Join(t.Scopes, " "),
	})
	if s.kid != "" {
		token.Header["kid"] = s.kid
	}
	return token.SignedString(s.key)
}
