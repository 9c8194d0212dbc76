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
	// version is the prefix of a sealed text. A sealed text has the form "sealed:v1:KEY-ID:BASE64".
	// The base64 part contains the nonce, the ciphertext and the authentication tag. If the form
	// changes, it must still begin with "sealed:" (engine.SealedPrefix).
	version = "sealed:v1:"
	// purpose is part of what AES-GCM authenticates. So Open cannot open a text that was sealed for
	// another purpose.
	purpose = "notifyd caller secret v1\x00"
)

// Keys seals and opens texts with AES-256-GCM. Seal uses the first key. Open uses the key with
// which the text was sealed. To replace a key, add the new key before the old key. All methods may
// be called from any goroutine. A nil *Keys cannot open any text.
type Keys struct {
	file string
	keys []key
}

type key struct {
	id   string // 16 hex digits: the first bytes of the SHA-256 of the key
	aead cipher.AEAD
}

// ErrOtherKey reports that a text was sealed with a key that is not among the Keys. The text may be
// undamaged.
var ErrOtherKey = errors.New("sealed with another key")

// ReadKeys reads a key file. Each line of the file holds one key of 32 bytes in base64. ReadKeys
// returns the errors of ReadFile. It returns notify.KindInvalid "bad_key_file" if a line is not a key
// or if the file has no key.
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
		if err != nil || len(raw) != keyBytes { // the error must not quote the line: the line may be nearly a whole key
			return nil, badKeys("%s: line %d is not a key; a key must be 32 bytes in base64, as the command openssl rand -base64 32 prints them", file, i+1)
		}
		one, err := newKey(raw)
		if err != nil {
			return nil, err
		}
		k.keys = append(k.keys, one)
	}
	if len(k.keys) == 0 {
		return nil, badKeys("%s contains no key; a key must be 32 bytes in base64, as the command openssl rand -base64 32 prints them", file)
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
	// The nonce is random and precedes the ciphertext. One key may seal 2^32 texts.
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return key{hex.EncodeToString(sum[:8]), aead}, err
}

// MakeKeys creates a key file of mode 0600 with a new key. When it returns nil as the error, the file
// and its name are on the disk. If the file exists, MakeKeys leaves it unchanged and returns
// fs.ErrExist.
func MakeKeys(file string) (*Keys, error) {
	var raw [keyBytes]byte
	rand.Read(raw[:]) // never fails since Go 1.24
	if err := atomicfile.NewFile(file, append(base64.StdEncoding.AppendEncode(nil, raw[:]), '\n')); err != nil {
		return nil, err
	}
	return ReadKeys(file)
}

// File returns the name of the file from which the keys were read.
func (k *Keys) File() string { return k.file }

// ID returns the id of the first key, with which Seal seals.
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

// Current reports whether a sealed text was sealed with the first key.
func (k *Keys) Current(text string) bool { return KeyID(text) == k.ID() }

// KeyID returns the id of the key with which a text was sealed. It returns "" if the text does not have
// the form that this release writes.
func KeyID(text string) string {
	rest, ok := strings.CutPrefix(text, version)
	id, _, more := strings.Cut(rest, ":")
	if !ok || !more {
		return ""
	}
	return id
}

// Seal encrypts text for an owner. To get the text back, Open needs the same owner and the same key.
func (k *Keys) Seal(owner, text string) string {
	sealed := k.keys[0].aead.Seal(nil, nil, []byte(text), []byte(purpose+owner))
	return version + k.ID() + ":" + base64.RawStdEncoding.EncodeToString(sealed)
}

// Open decrypts a text that Seal returned. It returns ErrOtherKey if none of the keys sealed the text.
// It returns another error if the text is damaged or was sealed for another owner.
func (k *Keys) Open(owner, sealed string) (string, error) {
	id := KeyID(sealed)
	if id == "" {
		return "", errors.New("the sealed text has an unknown form: it is damaged, or a newer release wrote it")
	}
	one, ok := k.find(id)
	if !ok {
		return "", fmt.Errorf("%w: the key with the id %s is missing", ErrOtherKey, id)
	}
	raw, err := base64.RawStdEncoding.DecodeString(sealed[len(version)+len(id)+1:])
	var text []byte
	if err == nil {
		text, err = one.aead.Open(nil, nil, raw, []byte(purpose+owner))
	}
	if err != nil {
		return "", errors.New("the sealed text cannot be opened with its key: it is damaged, or it was sealed for another caller")
	}
	return string(text), nil
}
