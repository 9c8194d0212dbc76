package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/golang-jwt/jwt/v5"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
	"github.com/notifyd/notifyd/pkg/setting"
)

// AuthConfig says which tokens are valid. Exactly one source of keys is set: JWKSURL (https, or
// http on loopback), JWKSFile, KeyFile or SecretFile (at least 32 bytes). KeyFile contains public
// keys. If it contains private keys, only their public halves are used.
//
// The source also determines the signature algorithms. SecretFile allows only HS256. The other
// sources allow RS256, ES256 and EdDSA, each only for its own kind of key. The fields with a koanf
// tag are the section "auth" of the configuration file. The program sets the other fields.
type AuthConfig struct {
	Issuer     string `koanf:"issuer" default:"notifyd" doc:"value that the claim iss of a token must have"`
	Audience   string `koanf:"audience" default:"notifyd" doc:"value that the claim aud of a token must have"`
	JWKSURL    string `koanf:"jwks_url" doc:"URL of the JWK set with the keys that verify tokens; set exactly one of jwks_url, jwks_file, key_file and hs256_file"`
	JWKSFile   string `koanf:"jwks_file" doc:"file with the JWK set with the keys that verify tokens; read again every 5 minutes"` // read again at intervals of Refresh
	KeyFile    string `koanf:"key_file" doc:"PEM file with the keys that verify tokens: RSA (RS256), P-256 (ES256) or Ed25519 (EdDSA); private keys are allowed, but only their public halves are used"`
	SecretFile string `koanf:"hs256_file" doc:"file with a secret of at least 32 bytes that verifies tokens (HS256); everybody who knows it can sign tokens, so use it only on one machine"`

	Leeway      time.Duration `default:"10s" min:"0" max:"30s"` // allowed difference between clocks, at most 30 s
	MaxLifetime time.Duration `default:"744h"`                  // longest lifetime of a token
	CacheFor    time.Duration `default:"1m" min:"0" max:"1m"`   // how long a verified token is cached, at most 60 s
	CacheSize   int           `default:"10000"`                 // number of verified tokens in the cache

	Refresh    time.Duration `default:"5m"`  // time between two fetches of the JWK set
	MinRefresh time.Duration `default:"10s"` // shortest time between fetches for unknown keys
	MaxStale   time.Duration `default:"24h"` // how long old keys stay valid while fetching fails

	HTTPClient *http.Client     // for JWKSURL; default: one with a timeout of 5 s
	Now        func() time.Time // default time.Now
}

// KeySources returns the settings JWKSURL, JWKSFile, KeyFile and SecretFile, without empty ones.
func (c *AuthConfig) KeySources() []string {
	return slices.DeleteFunc([]string{c.JWKSURL, c.JWKSFile, c.KeyFile, c.SecretFile}, func(s string) bool { return s == "" })
}

// Check returns notify.KindInvalid if c has no source of keys. The general check of a configuration
// file does not report a missing source, because the default configuration has none either.
func (c *AuthConfig) Check() error {
	if len(c.KeySources()) > 0 {
		return nil
	}
	return notify.Invalid("bad_config", "auth", "set one of auth.key_file, auth.jwks_url, auth.jwks_file and auth.hs256_file; without a key no token can be checked")
}

// maxToken is the longest token, in bytes.
const maxToken = 8 << 10

// Verifier checks tokens. It may be used from many goroutines.
type Verifier struct {
	cfg    AuthConfig
	parser *jwt.Parser
	fixed  keySet // keys from KeyFile or SecretFile
	set    *jwks  // keys from JWKSURL or JWKSFile
	cache  *recentCache[[sha256.Size]byte, cached]
}

type cached struct {
	id    *Identity
	until time.Time
}

// NewVerifier returns a Verifier and reads the configured keys. A JWK set is fetched later, by Run
// or for the first token. NewVerifier returns notify.KindInvalid if cfg is not valid or the keys
// cannot be read.
func NewVerifier(cfg AuthConfig) (*Verifier, error) {
	if cfg.Issuer == "" || cfg.Audience == "" {
		return nil, notify.Invalid("bad_config", "auth", "issuer and audience must be set")
	}
	cfg = setting.Fill(cfg)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if err := errors.Join(cfg.Check(), setting.Err("auth", &cfg)); err != nil {
		return nil, err
	}
	v := &Verifier{cfg: cfg, cache: newRecentCache[[sha256.Size]byte, cached](max(1, cfg.CacheSize/2))}
	methods := []string{"RS256", "ES256", "EdDSA"}
	var fetch func(context.Context) ([]byte, error)
	var err error
	switch {
	case cfg.SecretFile != "":
		methods = []string{"HS256"}
		v.fixed, err = readHMAC(cfg.SecretFile)
	case cfg.KeyFile != "":
		var data []byte
		if data, err = os.ReadFile(cfg.KeyFile); err == nil && bytes.Contains(data, []byte("PRIVATE KEY-----")) {
			data, err = secrets.ReadFile(cfg.KeyFile) // refuses a file that other users can read: its key can sign any token
		}
		if err == nil {
			v.fixed, err = parsePEM(data)
		}
	case cfg.JWKSFile != "":
		fetch = fileFetcher(cfg.JWKSFile)
	default:
		fetch, err = urlFetcher(cfg.JWKSURL, cfg.HTTPClient)
	}
	if err != nil {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: "bad_config", Field: "auth", Msg: "the keys cannot be read", Err: err}
	}
	if fetch != nil {
		v.set = &jwks{fetch: fetch, refresh: cfg.Refresh, minWait: cfg.MinRefresh, maxStale: cfg.MaxStale, now: cfg.Now}
	}
	v.parser = jwt.NewParser(
		jwt.WithValidMethods(methods), jwt.WithIssuer(cfg.Issuer), jwt.WithAudience(cfg.Audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(cfg.Leeway),
		jwt.WithStrictDecoding(), jwt.WithTimeFunc(cfg.Now),
	)
	return v, nil
}

func readHMAC(path string) (keySet, error) {
	secret, err := secrets.ReadFile(path)
	if err != nil {
		return nil, err
	}
	secret = bytes.TrimSpace(secret)
	if len(secret) < minSecret {
		return nil, fmt.Errorf("the secret has %d bytes; it must have at least %d bytes", len(secret), minSecret)
	}
	return keySet{{alg: "HS256", key: secret}}, nil
}

// Run refreshes a JWK set until ctx ends. With other keys it only waits. It calls the function
// report with the error of each failed fetch.
func (v *Verifier) Run(ctx context.Context, report func(error)) error {
	if v.set == nil {
		<-ctx.Done()
		return nil
	}
	return v.set.run(ctx, report)
}

// Verify checks a token and returns its identity. It caches a valid token by its hash, for at most
// CacheFor and never longer than until its expiry. An ES256 check costs about 100 us, a cache hit
// about 1 us (BenchmarkVerify).
func (v *Verifier) Verify(ctx context.Context, token string) (*Identity, error) {
	if len(token) > maxToken {
		return nil, unauthorized("token_too_long", "the token is longer than 8 KiB", nil)
	}
	now := v.cfg.Now()
	// The token is not copied, because the copy would be the only allocation of a cache hit. This
	// is safe because the bytes are only read.
	sum := sha256.Sum256(unsafe.Slice(unsafe.StringData(token), len(token)))
	if c, ok := v.cache.get(sum); ok {
		if now.Before(c.until) {
			return c.id, nil
		}
		v.cache.remove(sum)
	}
	id, exp, err := v.check(ctx, token, now)
	if err != nil {
		return nil, err
	}
	until := now.Add(v.cfg.CacheFor)
	if exp.Before(until) {
		until = exp
	}
	v.cache.put(sum, cached{id, until})
	return id, nil
}

func (v *Verifier) check(ctx context.Context, token string, now time.Time) (*Identity, time.Time, error) {
	var c claims
	var keyErr error
	_, err := v.parser.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) {
		var keys jwt.VerificationKeySet
		keys, keyErr = v.keysFor(ctx, t)
		return keys, keyErr
	})
	switch {
	case keyErr != nil:
		return nil, time.Time{}, keyErr
	case err != nil:
		return nil, time.Time{}, translateJWT(err)
	case c.ExpiresAt.Unix()-now.Unix() > int64((v.cfg.MaxLifetime+v.cfg.Leeway)/time.Second):
		return nil, time.Time{}, unauthorized("token_lifetime", "the token is valid for longer than this server allows", nil)
	case !checkCaller(c.Subject):
		return nil, time.Time{}, unauthorized("token_subject", "the token's sub is missing, too long or has characters other than letters, digits and ._:@/|+-", nil)
	}
	id := NewIdentity(c.Subject, strings.Split(c.Scope, " ")...)
	if c.Users != nil {
		id.bind(*c.Users)
	}
	return id, c.ExpiresAt.Time, nil
}

// keysFor checks the header of the token and returns the keys that may have signed the token. It
// ignores jku, x5u and jwk, because keys must only come from the configuration.
func (v *Verifier) keysFor(ctx context.Context, t *jwt.Token) (jwt.VerificationKeySet, error) {
	var none jwt.VerificationKeySet
	if _, ok := t.Header["crit"]; ok {
		return none, unauthorized("token_critical", "the token has critical extensions (crit) that this server does not understand", nil)
	}
	if typ, ok := t.Header["typ"]; ok {
		s, _ := typ.(string)
		if !strings.EqualFold(s, "JWT") && !strings.EqualFold(s, "at+jwt") {
			return none, unauthorized("token_type", "the token's typ is not JWT or at+jwt", nil)
		}
	}
	alg := t.Method.Alg()
	found := v.fixed
	if v.set != nil {
		kid, _ := t.Header["kid"].(string)
		if kid == "" || len(kid) > 256 {
			return none, unauthorized("token_key_unknown", "the token's key id (kid) is missing or longer than 256 bytes", nil)
		}
		var err error
		if found, err = v.set.find(ctx, kid, alg); err != nil {
			return none, err
		}
	}
	for _, k := range found {
		if k.alg == alg {
			none.Keys = append(none.Keys, k.key)
		}
	}
	if len(none.Keys) == 0 {
		return none, unauthorized("token_key_unknown", "this server does not know the token's key", nil)
	}
	return none, nil
}

// translateJWT returns a *notify.Error for an error of the JWT library. The error does not contain
// parts of the token.
func translateJWT(err error) error {
	if e, ok := errors.AsType[*notify.Error](err); ok { // from claims.UnmarshalJSON
		return e
	}
	for _, c := range []struct {
		is        error
		code, msg string
	}{
		{jwt.ErrTokenMalformed, "token_malformed", "the token is not a JWT"},
		{jwt.ErrTokenUnverifiable, "token_algorithm", "the token's algorithm is not accepted"},
		{jwt.ErrTokenSignatureInvalid, "token_signature", "the token's signature or algorithm is not accepted"},
		{jwt.ErrTokenExpired, "token_expired", "the token has expired"},
		{jwt.ErrTokenRequiredClaimMissing, "token_claims", "the token lacks one of the claims exp, iss and aud"},
		{jwt.ErrTokenNotValidYet, "token_not_yet", "the token is not valid yet"},
		{jwt.ErrTokenUsedBeforeIssued, "token_not_yet", "the token was issued in the future"},
		{jwt.ErrTokenInvalidAudience, "token_audience", "the token is for another audience"},
		{jwt.ErrTokenInvalidIssuer, "token_issuer", "the token is from another issuer"},
	} {
		if errors.Is(err, c.is) {
			return unauthorized(c.code, c.msg, err)
		}
	}
	return unauthorized("token_invalid", "the token is not valid", err)
}

func unauthorized(code, msg string, err error) *notify.Error {
	return &notify.Error{Kind: notify.KindUnauthorized, Code: code, Msg: msg, Err: err}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}
