package server

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// verifyKey is a key and the one algorithm it may be used with: the algorithm
// follows from the key, never from the token.
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

// algorithm returns the one signature algorithm of a public key; "" for keys
// too weak or of a kind nobody here uses.
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

// parseJWKS reads the keys of a JWK set that can verify a token. Keys of other
// kinds, for encryption, without an id, or that are private or symmetric (one
// who publishes those has lost them) are left out.
func parseJWKS(data []byte) (keySet, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("not a JWK set: %w", err)
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
		return nil, fmt.Errorf("the JWK set holds no RSA, P-256 or Ed25519 key for signatures with an id")
	}
	return ks, nil
}

// mayVerify reports whether a JWK's key_ops, where it has any, include "verify"
// (RFC 7517, 4.3). go-jose does not read them.
func mayVerify(raw json.RawMessage) bool {
	var k struct {
		Ops *[]string `json:"key_ops"`
	}
	return json.Unmarshal(raw, &k) == nil && (k.Ops == nil || slices.Contains(*k.Ops, "verify"))
}

// parsePEM reads public keys, or the public halves of private ones.
func parsePEM(data []byte) (keySet, error) {
	var ks keySet
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		pub, err := publicOf(block)
		if err != nil {
			return nil, err
		}
		if pub == nil {
			continue
		}
		alg := algorithm(pub)
		if alg == "" {
			return nil, fmt.Errorf("key of kind %T: need RSA of 2048 bits, P-256 or Ed25519", pub)
		}
		id, err := thumbprint(pub)
		if err != nil {
			return nil, err
		}
		ks = append(ks, verifyKey{id: id, alg: alg, key: pub})
	}
	if len(ks) == 0 {
		return nil, fmt.Errorf("no PEM key in the file")
	}
	return ks, nil
}

func publicOf(block *pem.Block) (any, error) {
	switch block.Type {
	case "PUBLIC KEY":
		return x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		return x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		return cert.PublicKey, nil
	case "PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY":
		priv, err := parsePrivate(block)
		if err != nil {
			return nil, err
		}
		return priv.Public(), nil
	}
	return nil, nil // "EC PARAMETERS" and such
}

func parsePrivate(block *pem.Block) (crypto.Signer, error) {
	var key any
	var err error
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("PEM block %q is no private key", block.Type)
	}
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a %T cannot sign", key)
	}
	return signer, nil
}

// thumbprint is the key's id where nobody named it (RFC 7638).
func thumbprint(pub any) (string, error) {
	k := jose.JSONWebKey{Key: pub}
	sum, err := k.Thumbprint(crypto.SHA256)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(sum), nil
}

// minSecret is the shortest HS256 secret, in bytes: the size of its hash.
const minSecret = 32
