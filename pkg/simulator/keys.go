package simulator

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	randv2 "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// seed is the source of every key. A program that has the seed has all keys. That is intended,
// because the keys protect only a simulator on loopback.
type seed [32]byte

const seedFile = "seed"

// newSeed returns the seed that is stored in dir. If dir contains no seed, it makes a seed and
// stores it in dir. The new seed is derived from n; if n is 0, it is random. If dir is empty,
// newSeed derives the seed from n and stores nothing.
func newSeed(dir string, n uint64) (seed, error) {
	fromN := seed(sha256.Sum256(fmt.Appendf(nil, "notifyd simulator %d", n)))
	if dir == "" {
		return fromN, nil
	}
	path := filepath.Join(dir, seedFile)
	text, err := os.ReadFile(path)
	if err == nil {
		var s seed
		raw, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil || len(raw) != len(s) {
			return seed{}, fmt.Errorf("%s must hold a seed of 64 hexadecimal digits, but does not", path)
		}
		copy(s[:], raw)
		return s, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return seed{}, err
	}
	s := fromN
	if n == 0 {
		rand.Read(s[:]) // never fails since Go 1.24
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return seed{}, err
	}
	return s, os.WriteFile(path, []byte(hex.EncodeToString(s[:])+"\n"), 0o600)
}

func (s seed) derive(label string) [32]byte {
	return sha256.Sum256(append(s[:], label...))
}

// number returns a seed for random choices, which are not secret.
func (s seed) number() uint64 {
	d := s.derive("choices")
	return uint64(d[0]) | uint64(d[1])<<8 | uint64(d[2])<<16 | uint64(d[3])<<24 | uint64(d[4])<<32 | uint64(d[5])<<40 | uint64(d[6])<<48 | uint64(d[7])<<56
}

// hexDigits returns 32 hexadecimal digits.
func (s seed) hexDigits(label string) string {
	d := s.derive(label)
	return hex.EncodeToString(d[:16])
}

// appleCode returns n letters and digits that look like an id of Apple. The number n must be at
// most 52.
func (s seed) appleCode(label string, n int) string {
	d := s.derive(label)
	return base32.StdEncoding.EncodeToString(d[:])[:n]
}

func (s seed) apiKey() string {
	a, b := s.derive("sendgrid key id"), s.derive("sendgrid key")
	return "SG." + base64.RawURLEncoding.EncodeToString(a[:16]) + "." + base64.RawURLEncoding.EncodeToString(b[:])
}

// ecKey returns a P-256 key.
func (s seed) ecKey(label string) (*ecdsa.PrivateKey, error) {
	for i := range 100 { // nearly all candidates are below the order of the curve; a share of 2^-32 is not
		d := s.derive(fmt.Sprint(label, i))
		if k, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), d[:]); err == nil {
			return k, nil
		}
	}
	return nil, errors.New("no P-256 key could be derived from the seed")
}

// rsaKey returns a 2048-bit RSA key. It finds the two primes itself, because crypto/rsa cannot make
// a key from a seed.
func (s seed) rsaKey(label string) (*rsa.PrivateKey, error) {
	src := randv2.NewChaCha8(s.derive(label))
	p, q := newPrime(src), newPrime(src)
	one, e := big.NewInt(1), big.NewInt(65537)
	phi := new(big.Int).Mul(new(big.Int).Sub(p, one), new(big.Int).Sub(q, one))
	k := &rsa.PrivateKey{
		PublicKey: rsa.PublicKey{N: new(big.Int).Mul(p, q), E: 65537},
		D:         new(big.Int).ModInverse(e, phi),
		Primes:    []*big.Int{p, q},
	}
	k.Precompute()
	err := k.Validate()
	return k, err
}

// newPrime returns a 1024-bit prime that is usable with the exponent 65537. The two highest bits of
// the prime are set, so that the product of two such primes has 2048 bits.
func newPrime(src *randv2.ChaCha8) *big.Int {
	var raw [128]byte
	e := big.NewInt(65537)
	for {
		_, _ = src.Read(raw[:]) // never fails
		raw[0] |= 0xc0
		raw[127] |= 1
		p := new(big.Int).SetBytes(raw[:])
		if new(big.Int).Mod(new(big.Int).Sub(p, big.NewInt(1)), e).Sign() != 0 && p.ProbablyPrime(20) {
			return p
		}
	}
}

func pkcs8(k crypto.Signer) (string, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), nil
}
