package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Card is the content of scorecard.json.
type Card struct {
	Schema  int       `json:"schema"`
	Commit  string    `json:"commit"`
	Changed bool      `json:"changed"` // true: the working tree differs from the commit
	Minutes float64   `json:"minutes"` // value of the flag -minutes
	Started time.Time `json:"started_at"`
	Ended   time.Time `json:"ended_at"`
	Machine Machine   `json:"machine"`
	Parts   []Part    `json:"parts"`
	Pass    bool      `json:"pass"`

	// Signature is the Ed25519 signature of the card. The signed text is the card with an empty
	// Signature, in the form that json.Marshal writes.
	Signer    string `json:"signer"`    // public key, base64
	Signature string `json:"signature"` // base64
}

// Machine describes the machine on which the figures were measured.
type Machine struct {
	OS     string `json:"os"`
	Kernel string `json:"kernel,omitempty"`
	Arch   string `json:"arch"`
	CPU    string `json:"cpu,omitempty"`
	CPUs   int    `json:"cpus"`
	Memory string `json:"memory,omitempty"`
	Go     string `json:"go"`
	Load   string `json:"load_before,omitempty"` // load average of one minute, before the proofs
}

func thisMachine() Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version()}
	m.CPU, m.Memory = field("/proc/cpuinfo", "model name"), field("/proc/meminfo", "MemTotal")
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(b), " ")
	}
	return m
}

// field returns the value of the first line "name: value" in a file of /proc. It returns "" if the
// file has no such line or cannot be read.
func field(file, name string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// setCommit sets c.Commit and c.Changed. If the folder is not a checkout, c.Commit stays empty.
func (c *Card) setCommit(ctx context.Context) {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
	if err != nil {
		return
	}
	c.Commit = strings.TrimSpace(string(head))
	changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain").Output()
	c.Changed = err != nil || len(changes) > 0
}

// openKey reads the private key in the given file. If the file does not exist, openKey makes a key
// and writes it to the file. Only the owner can read the new file.
func openKey(file string) (ed25519.PrivateKey, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(file)
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("the file %s must be a PEM file", file)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	own, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the file %s must contain an Ed25519 key", file)
	}
	return own, nil
}

func makeKey(file string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	b, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	err = pem.Encode(f, &pem.Block{Type: "PRIVATE KEY", Bytes: b})
	return key, errors.Join(err, f.Close())
}

// sign sets Signer and Signature, and returns the content of scorecard.json.
func (c *Card) sign(key ed25519.PrivateKey) ([]byte, error) {
	public, _ := key.Public().(ed25519.PublicKey)
	c.Signer, c.Signature = base64.StdEncoding.EncodeToString(public), ""
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	c.Signature = base64.StdEncoding.EncodeToString(ed25519.Sign(key, b))
	b, err = json.MarshalIndent(c, "", "  ")
	return append(b, '\n'), err
}

// verify decodes the content of a file and checks its signature. signer is the public key that must
// have signed the file; if signer is empty, the key in the file is used. verify also returns an
// error if the file has an unknown JSON key, because the signature does not cover it.
func verify(b []byte, signer string) (*Card, error) {
	var c Card
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return nil, err
	}
	if signer != "" && signer != c.Signer {
		return nil, fmt.Errorf("the card was signed by another key: %s", c.Signer)
	}
	public, err := base64.StdEncoding.DecodeString(c.Signer)
	if err != nil || len(public) != ed25519.PublicKeySize {
		return nil, errors.New("the field signer of the card must be an Ed25519 public key in base64")
	}
	signature, err := base64.StdEncoding.DecodeString(c.Signature)
	if err != nil {
		return nil, fmt.Errorf("the field signature of the card must be base64: %w", err)
	}
	unsigned := c
	unsigned.Signature = ""
	text, err := json.Marshal(&unsigned)
	if err != nil {
		return nil, err
	}
	if !ed25519.Verify(public, text, signature) {
		return nil, errors.New("the signature of the card does not match its content")
	}
	return &c, nil
}

// closingLine returns the last line of the program's output: the result of each proof, as key=value
// pairs.
func (c *Card) closingLine(file string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "scorecard commit=%.12s changed=%t seconds=%.0f", c.Commit, c.Changed, c.Ended.Sub(c.Started).Seconds())
	for i := range c.Parts {
		p := &c.Parts[i]
		fmt.Fprintf(&b, " %s=%t", p.Name, p.Pass)
		for _, f := range p.Figures {
			if f.Name == "late, p99" {
				fmt.Fprintf(&b, " late_p99_ms=%g", f.Value)
			}
		}
	}
	fmt.Fprintf(&b, " file=%s signer=%s ok=%t", file, c.Signer, c.Pass)
	return b.String()
}
