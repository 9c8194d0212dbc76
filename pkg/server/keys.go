package server

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"

	"github.com/notifyd/notifyd/pkg/notify"
)

// verifyKey is a key and the only signature algorithm for which it may be used. The algorithm comes
// from the key. A token cannot choose it.
type verifyKey struct {
	id  string
	alg string
	key any
}

type keySet []verifyKey

// find returns the keys with this id and algorithm.
func (ks keySet) find(kid, alg string) (found []verifyKey) {
	for _, k := range ks {
		if k.id == kid && k.alg == alg {
			found = append(found, k)
		}
	}
	return found
}

// algorithm returns the signature algorithm of a public key. It returns "" if the key is too weak
// or of a kind that is not supported.
func algorithm(pub any) string {
	switch k := pub.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() >= 2048 {
			return "RS256"
		}
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() {
			return "ES256"
		}
	case ed25519.PublicKey:
		return "EdDSA"
	}
	return ""
}

// keyText describes a public key for an error, e.g. "RSA of 1024 bits".
func keyText(pub any) string {
	switch k := pub.(type) {
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA of %d bits", k.N.BitLen())
	case *ecdsa.PublicKey:
		return "ECDSA on the curve " + k.Curve.Params().Name
	}
	return fmt.Sprintf("of the type %T", pub)
}

// parseJWKS returns the keys of a JWK set that can verify a token. It ignores encryption keys, keys
// without an id, and keys of a type or size that is not supported. It also ignores private and
// symmetric keys: their secret is published with the set.
func parseJWKS(data []byte) (keySet, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("the data is not a JWK set: %w", err)
	}
	var ks keySet
	for _, raw := range set.Keys {
		var k jose.JSONWebKey
		if k.UnmarshalJSON(raw) != nil || !k.IsPublic() || !k.Valid() || k.KeyID == "" || k.Use == "enc" || !mayVerify(raw) {
			continue
		}
		alg := algorithm(k.Key)
		if alg == "" || (k.Algorithm != "" && k.Algorithm != alg) {
			continue
		}
		ks = append(ks, verifyKey{id: k.KeyID, alg: alg, key: k.Key})
	}
	if len(ks) == 0 {
		return nil, fmt.Errorf("the JWK set has no usable key: it needs an RSA, P-256 or Ed25519 key that is for signatures and has an id (kid)")
	}
	return ks, nil
}

// mayVerify reports whether the key_ops of a JWK include "verify" (RFC 7517, 4.3). It returns true
// if the JWK has no key_ops. go-jose does not read key_ops.
func mayVerify(raw json.RawMessage) bool {
	var k struct {
		Ops *[]string `json:"key_ops"`
	}
	return json.Unmarshal(raw, &k) == nil && (k.Ops == nil || slices.Contains(*k.Ops, "verify"))
}

// parsePEM reads public keys from PEM data. From a private key it takes the public key.
func parsePEM(data []byte) (keySet, error) {
	var ks keySet
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		key, err := parseBlock(block)
		if err != nil {
			return nil, err
		}
		if key == nil {
			continue
		}
		pub := key
		if private, ok := key.(crypto.Signer); ok {
			pub = private.Public()
		}
		alg := algorithm(pub)
		if alg == "" {
			return nil, fmt.Errorf("the key is %s: use RSA of at least 2048 bits, P-256 or Ed25519", keyText(pub))
		}
		id, err := thumbprint(pub)
		if err != nil {
			return nil, err
		}
		ks = append(ks, verifyKey{id: id, alg: alg, key: pub})
	}
	if len(ks) == 0 {
		return nil, fmt.Errorf("the file contains no key in PEM form")
	}
	return ks, nil
}

// parseBlock returns the public or private key of a PEM block. It returns nil for blocks without a
// key, such as "EC PARAMETERS".
func parseBlock(block *pem.Block) (any, error) {
	switch block.Type {
	case "PUBLIC KEY":
		return x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		return x509.ParsePKCS1PublicKey(block.Bytes)
	case "PRIVATE KEY":
		return x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		return x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		return x509.ParsePKCS1PrivateKey(block.Bytes)
	case "CERTIFICATE":
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		return cert.PublicKey, nil
	}
	return nil, nil
}

// thumbprint returns an id for a key without a name (RFC 7638).
func thumbprint(pub any) (string, error) {
	k := jose.JSONWebKey{Key: pub}
	sum, err := k.Thumbprint(crypto.SHA256)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(sum), nil
}

// minSecret is the shortest HS256 secret, in bytes: as long as a SHA-256 hash.
const minSecret = 32

// maxJWKS is the largest size of a key set, in bytes.
const maxJWKS = 1 << 20

// jwks caches the keys of a JWK set that may change. It fetches the set at regular intervals
// (refresh). It also fetches the set when a token names an unknown key, but not within the time
// minWait after the last fetch. If fetches fail, jwks uses the last set for at most the time
// maxStale.
type jwks struct {
	fetch    func(ctx context.Context) ([]byte, error)
	refresh  time.Duration
	minWait  time.Duration
	maxStale time.Duration
	now      func() time.Time

	mu       sync.Mutex // guards the fields below
	keys     keySet
	lastGood time.Time
	lastTry  time.Time
	lastErr  error

	fetching singleflight.Group
}

// find returns the keys for the kid of a token. If the kid is not known, or the set is older than
// maxStale, it first fetches the set.
func (j *jwks) find(ctx context.Context, kid, alg string) ([]verifyKey, error) {
	j.mu.Lock()
	found := j.keys.find(kid, alg)
	fresh := !j.lastGood.IsZero() && j.now().Sub(j.lastGood) <= j.maxStale
	j.mu.Unlock()
	if len(found) > 0 && fresh {
		return found, nil
	}
	if err := j.update(ctx); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lastGood.IsZero() || j.now().Sub(j.lastGood) > j.maxStale {
		return nil, notify.Unavailable("jwks", j.minWait, j.lastErr)
	}
	return j.keys.find(kid, alg), nil
}

// update fetches the set. If a fetch is already in progress, it waits for that fetch. It returns
// only the error of ctx; it stores the error of the fetch in lastErr.
func (j *jwks) update(ctx context.Context) error {
	done := j.fetching.DoChan("", func() (any, error) {
		j.mu.Lock()
		now := j.now()
		early := !j.lastTry.IsZero() && now.Sub(j.lastTry) < j.minWait
		if !early {
			j.lastTry = now
		}
		j.mu.Unlock()
		if early {
			return nil, nil
		}
		// Other requests wait for this fetch too. So the end of this request must not cancel it.
		fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		data, err := j.fetch(fctx)
		var ks keySet
		if err == nil {
			ks, err = parseJWKS(data)
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.lastErr = err; err == nil {
			j.keys, j.lastGood = ks, j.now()
		}
		return nil, nil
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run fetches the set at once, and then at intervals of j.refresh, until ctx ends. It calls the
// function report with the error of each fetch that failed.
func (j *jwks) run(ctx context.Context, report func(error)) error {
	for {
		if err := j.update(ctx); err != nil {
			return nil // ctx has ended
		}
		j.mu.Lock()
		err := j.lastErr
		j.mu.Unlock()
		if err != nil {
			report(err)
		}
		if !notify.Sleep(ctx, j.refresh) {
			return nil
		}
	}
}

// urlFetcher returns a function that fetches a set over https, or over http from this machine. The
// function does not follow redirects, because another host would then decide which keys are
// trusted.
func urlFetcher(raw string, client *http.Client) (func(context.Context) ([]byte, error), error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) {
		return nil, fmt.Errorf("the JWKS URL %s must be https", u.Redacted())
	}
	if client == nil {
		client = &http.Client{Timeout: 5 * time.Second}
	}
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return func(ctx context.Context) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, raw, nil)
		if err != nil {
			return nil, err
		}
		resp, err := own.Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("the JWKS URL answered with status %s", resp.Status)
		}
		return readAtMost(resp.Body, maxJWKS)
	}, nil
}

func fileFetcher(path string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readAtMost(f, maxJWKS)
	}
}

func readAtMost(r io.Reader, max int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, max+1))
	if err == nil && int64(len(data)) > max {
		err = errors.New("the key set is larger than 1 MiB")
	}
	return data, err
}
