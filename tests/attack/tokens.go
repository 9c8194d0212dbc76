package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// keys has the keys that the servers trust, and keys that they must not trust.
type keys struct {
	own    *ecdsa.PrivateKey // the signing key that both servers trust
	other  *ecdsa.PrivateKey // no server may trust it
	p384   *ecdsa.PrivateKey
	rsa    *rsa.PrivateKey
	weak   *rsa.PrivateKey // 1,024 bits: too short
	ed     ed25519.PrivateKey
	sym    []byte
	ownPEM []byte            // the public half of the key own, which an attacker knows
	events *ecdsa.PrivateKey // signs the events of the provider SendGrid
}

func newKeys(r *world) *keys {
	k := &keys{sym: make([]byte, 32)}
	for _, x := range []struct {
		to    **ecdsa.PrivateKey
		curve elliptic.Curve
	}{{&k.own, elliptic.P256()}, {&k.other, elliptic.P256()}, {&k.p384, elliptic.P384()}, {&k.events, elliptic.P256()}} {
		*x.to = rig.Must(ecdsa.GenerateKey(x.curve, rand.Reader))
	}
	k.rsa = rig.Must(rsa.GenerateKey(rand.Reader, 2048))
	k.weak = rig.Must(rsa.GenerateKey(rand.Reader, 1024))
	_, k.ed = rig.Must2(ed25519.GenerateKey(rand.Reader))
	rig.Must(rand.Read(k.sym))
	der := rig.Must(x509.MarshalPKCS8PrivateKey(k.own))
	pub := rig.Must(x509.MarshalPKIXPublicKey(k.own.Public()))
	hook := rig.Must(x509.MarshalPKIXPublicKey(k.events.Public()))
	k.ownPEM = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub})
	for name, b := range map[string][]byte{
		"key.pem":      pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		"jwks.json":    k.jwks(),
		"webhook.key":  []byte(base64.StdEncoding.EncodeToString(hook)),
		"sendgrid.key": []byte("SG.attack"),
	} {
		rig.Ok(os.WriteFile(r.file(name), b, 0o600))
	}
	return k
}

// jwks returns the key set of the second server. The server must accept signatures of some of
// these keys, and must refuse signatures of the other keys.
func (k *keys) jwks() []byte {
	ec := func(kid string, key *ecdsa.PrivateKey, more map[string]any) map[string]any {
		raw, err := key.PublicKey.Bytes()
		if err != nil {
			panic(err) // cannot happen: newKeys made the key
		}
		half := (len(raw) - 1) / 2
		out := map[string]any{"kty": "EC", "kid": kid, "crv": key.Params().Name, "x": b64(raw[1 : 1+half]), "y": b64(raw[1+half:])}
		maps.Copy(out, more)
		return out
	}
	rsaKey := func(kid string, key *rsa.PrivateKey) map[string]any {
		return map[string]any{"kty": "RSA", "kid": kid, "n": b64(key.N.Bytes()), "e": "AQAB"}
	}
	b, err := json.Marshal(map[string]any{"keys": []any{
		ec("good", k.own, nil), rsaKey("rsa", k.rsa), rsaKey("weak", k.weak), ec("p384", k.p384, nil),
		ec("enc", k.other, map[string]any{"use": "enc"}),
		ec("ops", k.other, map[string]any{"key_ops": []string{"encrypt"}}),
		ec("wrong-alg", k.other, map[string]any{"alg": "RS256"}),
		ec("private", k.other, map[string]any{"d": b64(k.other.D.Bytes())}), //nolint:staticcheck // a JWK has it
		map[string]any{"kty": "oct", "kid": "oct", "k": b64(k.sym)},
		map[string]any{"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": b64(k.ed.Public().(ed25519.PublicKey))}, //nolint:forcetypeassert // it is one
		ec("", k.other, nil),
	}})
	if err != nil {
		panic(err)
	}
	return b
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// claimsOf returns the claims of a valid token.
func claimsOf(caller, scope string) map[string]any {
	now := time.Now().Unix()
	return map[string]any{"iss": "notifyd", "aud": "notifyd", "sub": caller, "scope": scope, "iat": now, "exp": now + 3600}
}

// token returns a valid token.
func (k *keys) token(caller, scope string) string {
	return k.signToken("ES256", k.own, nil, claimsOf(caller, scope))
}

// withChanges returns a copy of the claims, with the values in the map changes instead of the old
// ones. A nil value removes the claim.
func withChanges(claims map[string]any, changes map[string]any) map[string]any {
	out := maps.Clone(claims)
	for name, v := range changes {
		if out[name] = v; v == nil {
			delete(out, name)
		}
	}
	return out
}

// signToken makes a token with any algorithm name and any key. headerFields are extra fields of the
// header. body is a map of claims, or a string with the raw text of the claims.
func (k *keys) signToken(alg string, key any, headerFields map[string]any, body any) string {
	header, err := json.Marshal(withChanges(map[string]any{"alg": alg, "typ": "JWT"}, headerFields))
	if err != nil {
		panic(err)
	}
	raw, isText := body.(string)
	if !isText {
		b, err := json.Marshal(body)
		if err != nil {
			panic(err)
		}
		raw = string(b)
	}
	text := b64(header) + "." + b64([]byte(raw))
	return text + "." + b64(signature(key, []byte(text)))
}

// signature signs the text with a key of any type. The signature is empty if the key is nil.
func signature(key any, text []byte) []byte {
	sum := sha256.Sum256(text)
	switch key := key.(type) {
	case nil:
		return nil
	case []byte:
		mac := hmac.New(sha256.New, key)
		mac.Write(text)
		return mac.Sum(nil)
	case *ecdsa.PrivateKey:
		digest, size := sum[:], 32
		if key.Curve == elliptic.P384() {
			long := sha512.Sum384(text)
			digest, size = long[:], 48
		}
		a, b, err := ecdsa.Sign(rand.Reader, key, digest)
		if err != nil {
			panic(err)
		}
		out := make([]byte, 2*size)
		a.FillBytes(out[:size])
		b.FillBytes(out[size:])
		return out
	case *rsa.PrivateKey:
		out, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
		if err != nil {
			return []byte("a key that is too short")
		}
		return out
	case ed25519.PrivateKey:
		return ed25519.Sign(key, text)
	}
	panic(fmt.Sprintf("attack: cannot sign with a key of type %T", key))
}
