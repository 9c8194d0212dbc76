package trigger

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Limits of a signing key, in bytes before base64 (Standard Webhooks).
const (
	minSecret = 24
	maxSecret = 64
)

const secretPrefix = "whsec_"

// NewSecret returns a new signing secret of 32 random bytes.
func NewSecret() string {
	var b [32]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return secretPrefix + base64.StdEncoding.EncodeToString(b[:])
}

// ParseSecret returns the key of a secret. It returns notify.KindInvalid if the secret is not
// valid.
func ParseSecret(secret string) ([]byte, error) {
	raw, ok := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(raw)
	if !ok || err != nil || len(key) < minSecret || len(key) > maxSecret {
		return nil, notify.Invalid("bad_secret", "secret", "must be \"whsec_\" followed by 24 to 64 bytes in base64")
	}
	return key, nil
}

// Rotate adds a new secret at the beginning of a caller's secrets. It keeps one old secret: the
// newest that can be used. The old secret expires after the given duration, or earlier if it
// already had an earlier end. Rotate drops all other secrets, so a caller has at most two secrets
// at a time.
func Rotate(c engine.Caller, now time.Time, overlap time.Duration) (changed engine.Caller, secret string) {
	secret = NewSecret()
	at, until := now.UnixMilli(), now.Add(overlap).UnixMilli()
	list := []engine.CallerSecret{{Secret: secret, Created: at}}
	for _, old := range c.Secrets {
		if old.Expires != 0 && old.Expires <= at || overlap <= 0 || old.Sealed() {
			continue // a sealed secret, whose key is missing, cannot sign
		}
		if old.Expires == 0 || old.Expires > until {
			old.Expires = until
		}
		list = append(list, old)
		break
	}
	c.Secrets = list
	return c, secret
}

// keysOf returns the keys that may sign at the time now (ms since 1970), newest first.
func keysOf(secrets []engine.CallerSecret, now int64) (keys [][]byte) {
	for _, s := range secrets {
		if s.Expires != 0 && s.Expires <= now {
			continue
		}
		if key, err := ParseSecret(s.Secret); err == nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// signer makes signatures with the keys of a caller. It is safe for concurrent use.
type signer struct {
	// macs has a pool of hash.Hash for each key, because a new hash costs as much as a signature.
	macs []sync.Pool
}

func newSigner(keys [][]byte) *signer {
	s := &signer{macs: make([]sync.Pool, len(keys))}
	for i := range keys {
		s.macs[i].New = func() any { return hmac.New(sha256.New, keys[i]) }
	}
	return s
}

// sign returns the value of the webhook-signature header. For each key it contains "v1," and an
// HMAC in base64: that of the id, the timestamp and the body, with dots between them. The timestamp
// is in seconds since 1970.
func (s *signer) sign(id string, timestamp int64, body []byte) string {
	var buf [128]byte
	head := append(append(buf[:0], id...), '.')
	head = append(strconv.AppendInt(head, timestamp, 10), '.')
	out := make([]byte, 0, 48*len(s.macs))
	var sum [sha256.Size]byte
	for i := range s.macs {
		mac := s.macs[i].Get().(hash.Hash)
		mac.Reset()
		mac.Write(head)
		mac.Write(body)
		if i > 0 {
			out = append(out, ' ')
		}
		out = append(out, "v1,"...)
		out = base64.StdEncoding.AppendEncode(out, mac.Sum(sum[:0]))
		s.macs[i].Put(mac)
	}
	return string(out)
}
