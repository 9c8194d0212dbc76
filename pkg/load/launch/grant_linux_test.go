package launch

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/load"
)

// elsewhere is an address that is not a loopback address. The test uses it in a network namespace of its
// own.
const elsewhere = "10.77.0.1"

// inNetwork is an environment variable. It is set in the process that the test starts in a network
// namespace of its own.
const inNetwork = "NOTIFYD_TEST_IN_NETWORK"

// TestNoPacketWithoutAGrant runs in a network namespace of its own and counts the packets there. Without
// a valid grant, no packet goes to the host. With a grant, the run sends load to the host. It stops
// within a second after the host has revoked the grant.
func TestNoPacketWithoutAGrant(t *testing.T) {
	if os.Getenv(inNetwork) == "" {
		t.Parallel()
		again(t)
		return
	}
	if err := raise("lo", "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	if err := raise("lo:1", elsewhere); err != nil {
		t.Fatal(err)
	}
	s := newStaging(t)
	scenario := load.Scenario{Name: "s", Duration: load.Duration(30 * time.Second), Steps: []load.Step{{Name: "one", Rate: 200, Workers: 4}}}
	scenario = scenario.WithDefaults()
	open := func(grant, server, simulators string) (*Environment, error) {
		return Open(t.Context(), &scenario, &Options{
			Note: func(string, ...any) {}, Grant: grant, NoCalibration: true, Timeout: 5 * time.Second,
			Context: func() (*api.Client, string, error) { return &api.Client{BaseURL: server}, simulators, nil },
		})
	}
	good := func(change func(*api.LoadGrant)) string {
		g := api.LoadGrant{ID: "lg_1", Cluster: "c", Hosts: []string{s.host}, Rate: 1000, Targets: []string{"push"}, Providers: api.ProvidersStub, ExpiresAt: time.Now().Add(time.Minute)}
		change(&g)
		return api.SignLoadGrant(g, ed25519.NewKeyFromSeed(make([]byte, 32)))
	}
	none := packets(t)
	for name, c := range map[string]struct{ grant, server, simulators string }{
		"no grant":            {"", s.url, ""},
		"no token":            {"x", s.url, ""},
		"of another host":     {good(func(g *api.LoadGrant) { g.Hosts = []string{"staging.example:7420"} }), s.url, ""},
		"of another port":     {good(func(g *api.LoadGrant) { g.Hosts = []string{elsewhere + ":1"} }), s.url, ""},
		"over":                {good(func(g *api.LoadGrant) { g.ExpiresAt = time.Now().Add(-time.Second) }), s.url, ""},
		"of a lower rate":     {good(func(g *api.LoadGrant) { g.Rate = 100 }), s.url, ""},
		"of another channel":  {good(func(g *api.LoadGrant) { g.Targets = []string{"sms"} }), s.url, ""},
		"other simulators":    {good(func(*api.LoadGrant) {}), s.url, "http://10.77.0.1:9"},
		"local simulators":    {"", s.url, "http://127.0.0.1:9"},
		"simulators in a row": {"", "http://127.0.0.1:9", "http://127.0.0.1:9/,http://10.77.0.1:9"},
		"of many in a row":    {good(func(*api.LoadGrant) {}), s.url, s.url + "/," + "http://10.77.0.1:9"},
		"with a query":        {good(func(*api.LoadGrant) {}), s.url + "/?x=", ""},
	} {
		if e, err := open(c.grant, c.server, c.simulators); err == nil {
			e.Close()
			t.Errorf("%s: it may go there", name)
		}
	}
	if n := packets(t) - none; n != 0 || s.connections() != 0 {
		t.Fatalf("%d packets and %d connections without a grant", n, s.connections())
	}
	token := good(func(*api.LoadGrant) {})
	s.set(func() { s.vague = true })
	if e, err := open(token, s.url, ""); err == nil {
		e.Close()
		t.Error("an answer that says nothing of the grant is consent")
	}
	s.set(func() { s.vague = false })
	e, err := open(token, s.url, "")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	run, err := load.New(scenario, e.Config)
	if err != nil {
		t.Fatal(err)
	}
	res, err := run.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revoked.IsZero() || s.last.Sub(s.revoked) > time.Second || !res.Partial || res.Totals.Sent > 400 {
		t.Errorf("revoked at %v, the last request came %v later; %+v %q", s.revoked, s.last.Sub(s.revoked), res.Totals, res.Stopped)
	}
	if s.unmarked > 0 {
		t.Errorf("%d requests came without the grant", s.unmarked)
	}
}

// again runs the test again, in a process that has a network namespace of its own.
func again(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNoPacketWithoutAGrant$", "-test.v")
	cmd.Env = append(os.Environ(), inNetwork+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if _, started := errors.AsType[*exec.ExitError](err); err != nil && !started {
		if os.Getuid() == 0 { // root can always make a network namespace, for example in CI
			t.Fatalf("a network of its own: %v", err)
		}
		t.Skipf("this machine gives no network of its own: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// raise gives an interface its address and turns it on.
func raise(name, address string) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := r.SetInet4Addr(net.ParseIP(address).To4()); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCSIFADDR, r); err != nil {
		return fmt.Errorf("%s: address: %w", name, err)
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r)
}

// packets returns how many packets went over the loopback interface of this network namespace so far.
func packets(t *testing.T) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if name, rest, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == "lo" {
			if _, err := fmt.Sscan(strings.Fields(rest)[1], &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("there is no lo")
	return 0
}

// staging is a server on another address that revokes its grant after 200 messages.
type staging struct {
	url, host string

	mu            sync.Mutex
	opened        int
	taken         int
	unmarked      int
	vague         bool // true: the server answers every request with an empty JSON object
	revoked, last time.Time
}

func (s *staging) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

func newStaging(t *testing.T) *staging {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", elsewhere+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &staging{host: ln.Addr().String()}
	s.url = "http://" + s.host
	srv := &httptest.Server{Listener: ln, Config: &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}}
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.mu.Lock()
			s.opened++
			s.mu.Unlock()
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	return s
}

func (s *staging) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *staging) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := api.ReadLoadToken(r.Header.Get(api.HeaderLoad), nil); err != nil {
		s.unmarked++
	}
	switch {
	case r.URL.Path == "/v1/load-grant" && !s.revoked.IsZero():
		w.Header().Set("Content-Type", api.TypeProblem)
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(api.Problem{Status: http.StatusForbidden, Code: "load_grant_revoked", Detail: "the load grant was revoked"})
	case s.vague:
		_, _ = io.WriteString(w, "{}")
	case r.URL.Path == "/v1/load-grant":
		_ = json.NewEncoder(w).Encode(api.LoadGrant{ID: "lg_1", State: api.GrantActive, Hosts: []string{s.host}})
	case r.Method == http.MethodPost: // accepts load even after the revocation, so that only the answer about the grant can stop the run
		s.taken, s.last = s.taken+1, time.Now()
		if s.taken == 200 {
			s.revoked = s.last
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"notification_id":"ntf_01KAJ8Q2T5E7V9XCB3M4N6P8RS"}`)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}
