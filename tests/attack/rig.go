package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// Addresses of the listeners. No other process can use the ports, because the namespace is new.
const (
	apiAddr   = "127.0.0.1:7420"
	adminPort = "7421"
	kafkaAddr = "127.0.0.1:7422"
	jwksAddr  = "127.0.0.1:7520" // API of the second server, which reads its keys from a JWK set
	simsAddr  = "127.0.0.1:7620" // control port of the simulated providers
)

// world has the servers under attack, and the keys and clients that the tries use.
type world struct {
	bin, dir string
	canary   *canary
	procs    map[string]*proc
	keys     *keys
	client   *http.Client
	number   atomic.Int64
	tries    []try // of the group that runs now

	mu      sync.Mutex
	signing []string // the signing secrets of all callers
	named   []string // the random ends of the callers' names
}

// proc is a process under attack.
type proc struct {
	*rig.Child

	args  []string
	ready string // a URL that answers 200 once the process is ready
	log   string
}

// open starts the canary and all servers. The caller must call end, also if open panics.
func (r *world) open(ctx context.Context) {
	r.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 32},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	r.canary = &canary{seen: map[netip.Addr]int{}, told: map[string]int{}, asked: map[string]int{}}
	r.canary.open(r.file("ca.pem"))
	r.keys = newKeys(r)
	// Other users may enter this folder. So the server itself must protect its files (fileTries).
	rig.Ok(os.Mkdir(r.file("data"), 0o755))
	rig.Ok(os.Chmod(r.file("data"), 0o755))
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
		r.start(ctx, name)
	}
	r.control(ctx)
}

// file returns the path of a file in the folder of the run.
func (r *world) file(name string) string { return filepath.Join(r.dir, name) }

// environ returns the environment of the servers. It names a proxy, which the servers must not
// use for callbacks, and the CA of the canary.
func (r *world) environ() []string {
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

func (r *world) start(ctx context.Context, name string) {
	p := r.procs[name]
	p.log = r.file(name + ".log")
	log := rig.Must(os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))
	defer log.Close()
	c := exec.Command(filepath.Join(r.bin, "notifyd"), p.args...)
	c.Env, c.Stdout, c.Stderr = r.environ(), log, log
	p.Child = rig.Must(rig.Spawn(c))
	if !eventually(ctx, time.Minute, func() bool {
		a, err := r.asked(request{url: p.ready})
		return p.Gone() || err == nil && a.status == http.StatusOK
	}) || p.Gone() {
		b, _ := os.ReadFile(p.log)
		panic(fmt.Errorf("the server %s is not ready after a minute, or has ended by itself:\n%s", name, b[max(0, len(b)-4000):]))
	}
}

// restart kills a server, if it still runs, and starts it again.
func (r *world) restart(ctx context.Context, name string) {
	rig.Ok(r.procs[name].Kill())
	r.start(ctx, name)
}

// ended returns the name of a server that has ended by itself, or "" if all servers run.
func (r *world) ended() string {
	for name, p := range r.procs {
		if p.Gone() {
			return name
		}
	}
	return ""
}

// end kills all servers.
func (r *world) end() {
	for _, p := range r.procs {
		if p.Child != nil {
			_ = p.Kill()
		}
	}
	if r.canary != nil {
		r.canary.end()
	}
}

// control checks that the test itself works. An allowed callback must reach the canary, and the
// canary must record a connection to an address that is not public. Otherwise a try could count as
// refused although the attack works.
func (r *world) control(ctx context.Context) {
	url := "https://" + nameFor(publicV4) + "/control"
	got := r.fireTrigger(ctx, url, url)
	if r.canary.requests("/control") == 0 {
		panic(fmt.Errorf("a callback to a public address did not reach the canary; the API %s", got))
	}
	rig.Ok(canConnect(ctx, "10.1.2.3:443"))
	if !eventually(ctx, 5*time.Second, func() bool { return r.canary.firstSeen(addrOf("10.1.2.3")) != "" }) {
		panic(errors.New("a connection to 10.1.2.3 did not reach the canary"))
	}
	r.canary.mu.Lock()
	defer r.canary.mu.Unlock()
	delete(r.canary.seen, addrOf("10.1.2.3"))
}

// request is a request to the API.
type request struct {
	method, url string // a url that begins with a slash is a path on the first server
	token       string // empty: no Authorization header
	body        string
	header      map[string]string
}

// answer is the answer of a server.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string {
	return "answered " + strconv.Itoa(a.status) + " " + strings.TrimSpace(a.body[:min(len(a.body), 300)])
}

// describeIf returns a description of the answer if gotThrough is true, and "" otherwise.
func (a answer) describeIf(gotThrough bool) string {
	if gotThrough {
		return a.String()
	}
	return ""
}

// field returns a text field of a JSON answer, or "" if the answer does not have it.
func (a answer) field(name string) string {
	var v map[string]any
	_ = json.Unmarshal([]byte(a.body), &v)
	s, _ := v[name].(string)
	return s
}

// ask sends a request. It panics if there is no answer: the try could not be made.
func (r *world) ask(q request) answer { return rig.Must(r.asked(q)) }

func (r *world) asked(q request) (answer, error) {
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
		err = nil // a stream without end: the bytes so far are the answer
	}
	return answer{resp.StatusCode, resp.Header, string(b)}, err
}

// must sends a request that prepares or checks a try. It panics if the status is not 2xx.
func (r *world) must(q request) answer {
	a := r.ask(q)
	if a.status/100 != 2 {
		panic(fmt.Errorf("%s %s %s", q.method, q.url, a))
	}
	return a
}

// createCaller creates a caller that may register triggers. The URL of each trigger must begin with
// one of the base URLs in bases. createCaller returns the name of the caller and the answer of the
// server. The server may refuse a base URL.
func (r *world) createCaller(bases ...string) (name string, a answer) {
	random := strings.ToLower(rand.Text())[:partLen]
	name = "caller-" + strconv.FormatInt(r.number.Add(1), 10) + "-" + random
	body := rig.Must(json.Marshal(map[string]any{"callback_urls": bases}))
	op := r.keys.token(name, "operate")
	a = r.ask(request{method: "PUT", url: "/v1/ops/callers/" + name, token: op, body: string(body)})
	if a.status != http.StatusOK {
		return name, a
	}
	made := r.must(request{method: "POST", url: "/v1/ops/callers/" + name + "/secrets", token: op, body: "{}"})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.signing, r.named = append(r.signing, made.field("secret")), append(r.named, random)
	return name, a
}

// mustCreateCaller does the same as createCaller. It panics if the server refuses a base URL.
func (r *world) mustCreateCaller(bases ...string) string {
	name, a := r.createCaller(bases...)
	if a.status != http.StatusOK {
		panic(errors.New(a.String()))
	}
	return name
}

// fireTrigger creates a caller, registers a trigger and waits for its first call. If the server
// refuses the base URL or the trigger, fireTrigger returns that answer. Otherwise it returns the
// answer that shows the trigger after the call.
func (r *world) fireTrigger(ctx context.Context, base, url string) answer {
	name, a := r.createCaller(base)
	if a.status != http.StatusOK {
		return a
	}
	token := r.keys.token(name, "trigger")
	a = r.ask(request{method: "POST", url: "/v1/triggers", token: token, body: triggerOf(url)})
	if a.status/100 != 2 {
		return a
	}
	if a = r.waitUntilCalled(ctx, a.field("trigger_id"), token, 20*time.Second); !strings.Contains(a.body, logged) {
		panic(fmt.Errorf("the trigger was not called within 20 s; the API %s", a))
	}
	return a
}

// logged is in the JSON of a trigger only if the trigger was called.
const logged = `"log":[`

// waitUntilCalled waits until a trigger was called, but not longer than limit. It returns the last
// answer of the API about the trigger.
func (r *world) waitUntilCalled(ctx context.Context, id, token string, limit time.Duration) (a answer) {
	eventually(ctx, limit, func() bool {
		a = r.must(request{url: "/v1/triggers/" + id, token: token})
		return strings.Contains(a.body, logged)
	})
	return a
}

func triggerOf(url string) string {
	b, _ := json.Marshal(map[string]any{"callback_url": url, "payload": map[string]int{"x": 1}, "delay_seconds": 0, "exact": true, "retry_schedule_seconds": []int{3600}})
	return string(b)
}
