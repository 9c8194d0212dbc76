package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/tests/internal/victim"
)

// Where the first server listens. The ports are free: the world is its own.
const (
	apiAddr   = "127.0.0.1:7420"
	adminPort = "7421"
	kafkaAddr = "127.0.0.1:7422"
	jwksAddr  = "127.0.0.1:7520" // of the second server, whose keys are a JWK set
	simsAddr  = "127.0.0.1:7620" // of the simulators' control
)

// rig is the world's servers, and what tries ask them with.
type rig struct {
	bin, dir string
	canary   *canary
	procs    map[string]*proc
	keys     *keys
	client   *http.Client
	number   atomic.Int64

	mu      sync.Mutex
	signing []string // the secrets that callers were given
}

// proc is a process under attack.
type proc struct {
	args   []string
	ready  string // a URL that answers 200 once it is ready
	cmd    *exec.Cmd
	exited chan struct{}
	log    string
}

func newRig(ctx context.Context, bin, dir string) (*rig, error) {
	r := &rig{bin: bin, dir: dir, procs: map[string]*proc{}}
	r.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 32},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	var err error
	if r.canary, err = newCanary(r.file("ca.pem")); err != nil {
		return r, err
	}
	if r.keys, err = newKeys(r); err != nil {
		return r, err
	}
	// Others may look into the folder: the server itself keeps its files from them.
	if err := os.Mkdir(r.file("data"), 0o755); err != nil {
		return r, err
	}
	if err := os.Chmod(r.file("data"), 0o755); err != nil {
		return r, err
	}
	r.procs["serve"] = &proc{
		ready: "http://" + apiAddr + "/readyz",
		args: []string{"serve", "--data-dir", r.file("data"), "--set", "api.listen=" + apiAddr, "--set", "api.admin=0.0.0.0:" + adminPort, "--set", "api.plaintext=anywhere",
			"--set", "log.listen=" + kafkaAddr, "--set", "auth.key_file=" + r.file("key.pem"), "--set", "providers.stub=true", "--set", "triggers.timeout=1s", "--set", "logging.level=debug"},
	}
	r.procs["jwks"] = &proc{
		ready: "http://" + jwksAddr + "/readyz",
		args: []string{"serve", "--data-dir", r.file("data-jwks"), "--set", "api.listen=" + jwksAddr, "--set", "api.admin=", "--set", "log.listen=off",
			"--set", "auth.jwks_file=" + r.file("jwks.json"), "--set", "providers.sendgrid.from=attack@shop.example", "--set", "providers.sendgrid.key_file=" + r.file("sendgrid.key"), "--set", "providers.sendgrid.webhook_key_file=" + r.file("webhook.key")},
	}
	r.procs["simulate"] = &proc{
		ready: "http://" + simsAddr + "/healthz",
		args:  []string{"simulate", "--dir", r.file("simulator"), "--control", simsAddr},
	}
	for name := range r.procs {
		if err := r.start(ctx, name); err != nil {
			return r, err
		}
	}
	err = r.control(ctx)
	return r, err
}

// file is a path in the folder of the run.
func (r *rig) file(name string) string { return filepath.Join(r.dir, name) }

// environ is the servers': with a proxy, which they must not use for callbacks, and
// the canary's CA.
func (r *rig) environ() []string {
	var out []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(strings.ToUpper(kv), "NO_PROXY=") {
			out = append(out, kv)
		}
	}
	return append(out, "HTTP_PROXY=http://127.0.0.1:3128", "HTTPS_PROXY=http://127.0.0.1:3128", "https_proxy=http://127.0.0.1:3128",
		"ALL_PROXY=http://127.0.0.1:3128", "SSL_CERT_FILE="+r.file("ca.pem"), "SSL_CERT_DIR=/nonexistent", "GODEBUG=netdns=go",
		"HOME="+r.dir, "XDG_DATA_HOME="+r.file("xdg"), "XDG_CONFIG_HOME="+r.file("xdg"))
}

func (r *rig) start(ctx context.Context, name string) error {
	p := r.procs[name]
	p.log = r.file(name + ".log")
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = victim.DieWithStarter(exec.Command(filepath.Join(r.bin, "notifyd"), p.args...))
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = r.environ(), log, log
	if err := p.cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	p.exited = exited
	go func(c *exec.Cmd) { _ = c.Wait(); close(exited) }(p.cmd)
	ready, err := eventually(ctx, time.Minute, func() (bool, error) {
		select {
		case <-exited:
			return false, errors.New("it ended by itself")
		default:
		}
		a, err := r.ask(request{url: p.ready})
		return err == nil && a.status == http.StatusOK, nil
	})
	if err == nil && !ready {
		err = errors.New("it is not ready after a minute")
	}
	if err != nil {
		b, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s: %w:\n%s", name, err, b[max(0, len(b)-4000):])
	}
	return nil
}

// stop asks a server to end. It reports whether it did within limit.
func (r *rig) stop(ctx context.Context, name string, limit time.Duration) (bool, error) {
	p := r.procs[name]
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return false, err
	}
	select {
	case <-p.exited:
		return true, nil
	case <-time.After(limit):
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// restart kills what is left of a server and starts it again.
func (r *rig) restart(ctx context.Context, name string) error {
	p := r.procs[name]
	_ = p.cmd.Process.Kill()
	<-p.exited
	return r.start(ctx, name)
}

// ended names a server that is not there any more; "" when all are.
func (r *rig) ended() string {
	for name, p := range r.procs {
		select {
		case <-p.exited:
			return name
		default:
		}
	}
	return ""
}

// end kills all servers.
func (r *rig) end() {
	for _, p := range r.procs {
		if p.exited != nil {
			_ = p.cmd.Process.Kill()
			<-p.exited
		}
	}
	if r.canary != nil {
		r.canary.end()
	}
}

// control shows that the rig would notice: what is allowed does get through.
func (r *rig) control(ctx context.Context) error {
	url := "https://" + named(publicV4) + "/control"
	got, err := r.fire(ctx, url, url)
	if err != nil {
		return fmt.Errorf("a callback to a public address: %w", err)
	}
	if r.canary.requests("/control") == 0 {
		return fmt.Errorf("a callback to a public address did not reach the canary: %s", got)
	}
	if err := dialled(ctx, "10.1.2.3:443"); err != nil {
		return err
	}
	if saw, err := eventually(ctx, 5*time.Second, func() (bool, error) { return r.canary.saw(addrOf("10.1.2.3")) != "", nil }); err != nil || !saw {
		return errors.Join(errors.New("a connection to 10.1.2.3 did not reach the canary"), err)
	}
	r.canary.mu.Lock()
	defer r.canary.mu.Unlock()
	delete(r.canary.seen, addrOf("10.1.2.3"))
	return nil
}

// request is one of the API.
type request struct {
	method, url string // url is a path where it begins with a slash
	token       string // empty: none
	body        string
	header      map[string]string
}

// answer is what a server said.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string {
	return "answered " + strconv.Itoa(a.status) + " " + strings.TrimSpace(a.body[:min(len(a.body), 300)])
}

// field is a text of a JSON answer.
func (a answer) field(name string) string {
	var v map[string]any
	_ = json.Unmarshal([]byte(a.body), &v)
	s, _ := v[name].(string)
	return s
}

func (r *rig) ask(q request) (answer, error) {
	url := q.url
	if strings.HasPrefix(url, "/") {
		url = "http://" + apiAddr + url
	}
	if q.method == "" {
		q.method = http.MethodGet
	}
	req, err := http.NewRequest(q.method, url, strings.NewReader(q.body))
	if err != nil {
		return answer{}, err
	}
	if q.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.token != "" {
		req.Header.Set("Authorization", "Bearer "+q.token)
	}
	for k, v := range q.header {
		if k == "Host" {
			req.Host = v
		}
		req.Header.Set(k, v)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
		err = nil // a stream: what it began with is its answer
	}
	return answer{resp.StatusCode, resp.Header, string(b)}, err
}

// must is a request of the rig itself, which has to succeed.
func (r *rig) must(q request) (answer, error) {
	a, err := r.ask(q)
	if err == nil && a.status/100 != 2 {
		err = fmt.Errorf("%s %s %s", q.method, q.url, a)
	}
	return a, err
}

// caller returns the name of a fresh caller who may register triggers for URLs below
// bases.
func (r *rig) caller(bases ...string) (name string, a answer, err error) {
	name = "caller-" + strconv.FormatInt(r.number.Add(1), 10)
	body, err := json.Marshal(map[string]any{"callback_urls": bases})
	if err != nil {
		return name, a, err
	}
	op := r.keys.token(name, "operate")
	a, err = r.ask(request{method: "PUT", url: "/v1/ops/callers/" + name, token: op, body: string(body)})
	if err != nil || a.status != http.StatusOK {
		return name, a, err
	}
	made, err := r.must(request{method: "POST", url: "/v1/ops/callers/" + name + "/secrets", token: op, body: "{}"})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.signing = append(r.signing, made.field("secret"))
	return name, a, err
}

// fire registers a trigger of a fresh caller and waits for its first call. It returns
// the refusal of the base or of the trigger, or the trigger as the call left it.
func (r *rig) fire(ctx context.Context, base, url string) (answer, error) {
	name, a, err := r.caller(base)
	if err != nil || a.status != http.StatusOK {
		return a, err
	}
	token := r.keys.token(name, "trigger")
	a, err = r.ask(request{method: "POST", url: "/v1/triggers", token: token, body: triggerOf(url)})
	if err != nil || a.status/100 != 2 {
		return a, err
	}
	path := "/v1/triggers/" + a.field("trigger_id")
	called, err := eventually(ctx, 20*time.Second, func() (bool, error) {
		a, err = r.must(request{url: path, token: token})
		return bytes.Contains([]byte(a.body), []byte(`"log":[`)), err
	})
	if err == nil && !called {
		err = fmt.Errorf("no call was made: %s", a)
	}
	return a, err
}

func triggerOf(url string) string {
	b, _ := json.Marshal(map[string]any{"callback_url": url, "payload": map[string]int{"x": 1}, "delay_seconds": 0, "exact": true, "retry_schedule_seconds": []int{3600}})
	return string(b)
}
