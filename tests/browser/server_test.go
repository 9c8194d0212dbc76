package browser

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is the longest time of any wait in this package. It is long because the machine may be
// busy. Each wait ends earlier, as soon as its condition is true.
const patience = 2 * time.Minute

var (
	chromium string  // path of the browser
	dev      *server // all tests share this server
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	for _, name := range []string{os.Getenv("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if at, err := exec.LookPath(name); name != "" && err == nil {
			chromium = at
			break
		}
	}
	if chromium == "" {
		if os.Getenv("NOTIFY_REQUIRE_BROWSER") == "1" {
			fmt.Fprintln(os.Stderr, "no Chromium: install the package chromium, or name one with CHROMIUM")
			return 1
		}
		fmt.Println("SKIP: no Chromium; NOTIFY_REQUIRE_BROWSER=1 makes that a failure")
		return 0
	}
	dir, err := os.MkdirTemp("", "notifyd-browser-")
	if err == nil {
		defer os.RemoveAll(dir)
		dev, err = start(dir)
	}
	if err == nil {
		defer dev.stop()
		err = dev.scene()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// server is a process of notifyd dev, which includes the simulated providers.
type server struct {
	dir, bin, url, metrics, issuer, audience, kid string
	cmd                                           *exec.Cmd
	out                                           io.ReadCloser
}

// start builds notifyd and notifyctl, starts notifyd dev, and waits until it is ready.
func start(dir string) (*server, error) {
	s := &server{dir: dir, bin: filepath.Join(dir, "bin")}
	build := exec.Command("go", "build", "-o", s.bin+"/", "./cmd/notifyd", "./cmd/notifyctl")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	s.cmd = s.command(context.Background(), "notifyd", "dev", "--data-dir", filepath.Join(dir, "dev"), "--port", "0", "--ready-timeout", "10m")
	var log bytes.Buffer
	s.cmd.Stderr = &log
	var err error
	if s.out, err = s.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for lines := bufio.NewScanner(s.out); lines.Scan(); {
		word := strings.Fields(lines.Text())
		if len(word) > 1 && word[0] == "API" {
			s.url = word[1]
		}
		if len(word) > 1 && word[0] == "Metrics" {
			s.metrics = word[1]
		}
		if len(word) > 0 && word[0] == "Try:" {
			go func() { _, _ = io.Copy(io.Discard, s.out) }() // the goroutine ends when the process ends
			return s, s.readToken()
		}
	}
	return nil, fmt.Errorf("notifyd dev did not come up: %w\n%s", s.cmd.Wait(), log.String())
}

// stop stops notifyd with SIGTERM, as an operator would, and waits until it has ended.
func (s *server) stop() {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err == nil {
		_ = s.cmd.Wait()
	}
}

func (s *server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	c.Env = append(os.Environ(), "XDG_CONFIG_HOME="+s.dir+"/config", "XDG_STATE_HOME="+s.dir+"/state", "XDG_DATA_HOME="+s.dir+"/data", "HOME="+s.dir, "NOTIFYCTL_TIMEOUT="+patience.String())
	return c
}

// ctl runs notifyctl and returns its standard output without surrounding white space.
func (s *server) ctl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := s.command(ctx, "notifyctl", args...)
	var remarks bytes.Buffer
	c.Stderr = &remarks
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("notifyctl %s: %w: %s", strings.Join(args, " "), err, remarks.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// readToken reads the key id, the issuer and the audience from the developer's token. The tokens
// that the method token signs need them.
func (s *server) readToken() error {
	b, err := os.ReadFile(filepath.Join(s.dir, "dev", "token"))
	if err != nil {
		return err
	}
	parts := strings.Split(strings.TrimSpace(string(b)), ".")
	var head struct{ Kid string }
	var claims struct {
		Iss string
		Aud []string
	}
	if len(parts) != 3 || decode(parts[0], &head) != nil || decode(parts[1], &claims) != nil || len(claims.Aud) == 0 {
		return errors.New("the developer's token is not the JWT expected")
	}
	s.kid, s.issuer, s.audience = head.Kid, claims.Iss, claims.Aud[0]
	return nil
}

func decode(part string, v any) error {
	b, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// token returns a token for the caller with the scope, signed with the developer's key. It is valid
// for an hour.
func (s *server) token(caller, scope string) (string, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, "dev", "key.pem"))
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return "", errors.New("the developer's key is no PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return "", fmt.Errorf("the developer's key is a %T", key)
	}
	part := func(v any) string {
		b, _ := json.Marshal(v) // maps of strings and numbers
		return base64.RawURLEncoding.EncodeToString(b)
	}
	now := time.Now().Unix()
	text := part(map[string]string{"alg": "ES256", "typ": "JWT", "kid": s.kid}) + "." +
		part(map[string]any{"iss": s.issuer, "aud": s.audience, "sub": caller, "scope": scope, "iat": now, "exp": now + 3600})
	sum := sha256.Sum256([]byte(text))
	r, v, err := ecdsa.Sign(rand.Reader, ec, sum[:])
	if err != nil {
		return "", err
	}
	sig := make([]byte, 64)
	r.FillBytes(sig[:32])
	v.FillBytes(sig[32:])
	return text + "." + base64.RawURLEncoding.EncodeToString(sig), nil
}

// post sends a POST request as the caller and returns the body of the answer. It returns an error
// for a status of 300 or above. The parameter kind is the content type.
func (s *server) post(caller, path, kind, body string) ([]byte, error) {
	token, err := s.token(caller, "send trigger read operate")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("POST %s: %s: %s", path, resp.Status, out)
	}
	return out, err
}
