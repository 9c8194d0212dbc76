package secrets

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	keyBytes = 32
	// version begins what Seal writes: sealed:v1:KEY-ID:BASE64 of nonce, ciphertext
	// and tag. Every later form begins with "sealed:" too (engine.SealedPrefix).
	version = "sealed:v1:"
	// purpose keeps a text that was sealed for something else from being opened here.
	purpose = "notifyd caller secret v1\x00"
)

// Keys seal and open texts with AES-256-GCM. The first key seals, every key opens:
// a key is replaced by a new one in front of it. The methods may be called from any
// goroutine. A nil *Keys opens nothing.
type Keys struct {
	file string
	keys []key
}

type key struct {
	id   string // 16 hex digits: the first bytes of the SHA-256 of the key
	aead cipher.AEAD
}

// ErrOtherKey is the error of a text that was sealed with a key that Keys do not
// have. Such a text may be whole.
var ErrOtherKey = errors.New("sealed with another key")

// ReadKeys reads a key file: a key of 32 bytes in base64 on each line. Its errors
// are those of ReadFile, and notify.KindInvalid "bad_key_file".
func ReadKeys(file string) (*Keys, error) {
	b, err := ReadFile(file)
	if err != nil {
		return nil, err
	}
	k := &Keys{file: file}
	for i, line := range bytes.Split(b, []byte{'\n'}) {
		text := string(bytes.TrimSpace(line))
		if text == "" {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(raw) != keyBytes { // never the line: it may be most of a key
			return nil, badKeys("%s: line %d is not a key: 32 bytes in base64, as openssl rand -base64 32 makes them", file, i+1)
		}
		one, err := newKey(raw)
		if err != nil {
			return nil, err
		}
		k.keys = append(k.keys, one)
	}
	if len(k.keys) == 0 {
		return nil, badKeys("%s holds no key: 32 bytes in base64, as openssl rand -base64 32 makes them", file)
	}
	return k, nil
}

func badKeys(format string, args ...any) error {
	return notify.Invalid("bad_key_file", "", fmt.Sprintf(format, args...))
}

func newKey(raw []byte) (key, error) {
	sum := sha256.Sum256(raw)
	block, err := aes.NewCipher(raw)
	if err != nil {
		return key{}, err
	}
	// The nonce is random and stands before the ciphertext: one key may seal 2^32 texts.
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return key{hex.EncodeToString(sum[:8]), aead}, err
}

// MakeKeys makes a key file of mode 0600 with a fresh key. The file and its name are
// on the disk when it returns. It returns fs.ErrExist where the file exists, and
// leaves that as it is.
func MakeKeys(file string) (*Keys, error) {
	var raw [keyBytes]byte
	rand.Read(raw[:]) // never fails since Go 1.24
	if err := atomicfile.NewFile(file, append(base64.StdEncoding.AppendEncode(nil, raw[:]), '\n')); err != nil {
		return nil, err
	}
	return ReadKeys(file)
}

// File is the file that the keys were read from.
func (k *Keys) File() string { return k.file }

// ID names the key that seals.
func (k *Keys) ID() string { return k.keys[0].id }

// Has reports whether one of the keys has the id.
func (k *Keys) Has(id string) bool {
	_, ok := k.find(id)
	return ok
}

func (k *Keys) find(id string) (key, bool) {
	if k != nil {
		for _, one := range k.keys {
			if one.id == id {
				return one, true
			}
		}
	}
	return key{}, false
}

// Current reports whether a text is sealed with the key that seals now.
func (k *Keys) Current(text string) bool { return KeyID(text) == k.ID() }

// KeyID names the key that a text was sealed with; empty: the text is not of a
// version that is known here.
func KeyID(text string) string {
	rest, ok := strings.CutPrefix(text, version)
	id, _, more := strings.Cut(rest, ":")
	if !ok || !more {
		return ""
	}
	return id
}

// Seal returns text so that only Open with the same owner and key returns it.
func (k *Keys) Seal(owner, text string) string {
	sealed := k.keys[0].aead.Seal(nil, nil, []byte(text), []byte(purpose+owner))
	return version + k.ID() + ":" + base64.RawStdEncoding.EncodeToString(sealed)
}

// Open returns a text that Seal was given. It returns ErrOtherKey for one that was
// sealed with a key that is not there, and another error for one that is damaged or
// was sealed for another owner.
func (k *Keys) Open(owner, sealed string) (string, error) {
	id := KeyID(sealed)
	if id == "" {
		return "", errors.New("sealed in a form that is not known here: by a newer release, or damaged")
	}
	one, ok := k.find(id)
	if !ok {
		return "", fmt.Errorf("%w, %s", ErrOtherKey, id)
	}
	raw, err := base64.RawStdEncoding.DecodeString(sealed[len(version)+len(id)+1:])
	var text []byte
	if err == nil {
		text, err = one.aead.Open(nil, nil, raw, []byte(purpose+owner))
	}
	if err != nil {
		return "", errors.New("damaged, or of another caller: the key fits and it does not open")
	}
	return string(text), nil
}
