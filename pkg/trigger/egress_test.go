package trigger

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/notifyd/notifyd/pkg/notify"
)

// nameServer is a DNS server in memory. The field answers has, by name, the addresses for each
// look-up; the last answer is repeated for ever.
type nameServer struct {
	mu      sync.Mutex
	answers map[string][][]string
	asked   map[string]int
}

func (s *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go s.serve(server)
		return client, nil
	}}
}

// serve answers DNS requests on a stream, where each message has its length before it.
func (s *nameServer) serve(c net.Conn) {
	defer c.Close()
	for {
		var n [2]byte
		if _, err := io.ReadFull(c, n[:]); err != nil {
			return
		}
		q := make([]byte, binary.BigEndian.Uint16(n[:]))
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(q) != nil || len(m.Questions) != 1 {
			return
		}
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		name := strings.TrimSuffix(m.Questions[0].Name.String(), ".")
		for _, text := range s.next(name, m.Questions[0].Type) {
			a := netip.MustParseAddr(text)
			head := dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET}
			switch {
			case a.Is4() && m.Questions[0].Type == dnsmessage.TypeA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
			case a.Is6() && m.Questions[0].Type == dnsmessage.TypeAAAA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
			}
		}
		out, err := m.Pack()
		if err != nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)); err != nil {
			return
		}
	}
}

// next returns the answer of this look-up; A and AAAA are one look-up.
func (s *nameServer) next(name string, t dnsmessage.Type) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.answers[name]
	if len(list) == 0 {
		return nil
	}
	key := name + t.String()
	if s.asked == nil {
		s.asked = map[string]int{}
	}
	n := min(s.asked[key], len(list)-1)
	s.asked[key]++
	return list[n]
}

// listener counts connections.
type listener struct {
	net.Listener
	accepted atomic.Int64
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return c, err
}

// serveAt starts a receiver at an address, and returns its port and its listener.
func serveAt(t testing.TB, address string, h http.HandlerFunc) (port string, l *listener) {
	t.Helper()
	raw, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ = net.SplitHostPort(raw.Addr().String())
	return port, serveOn(t, raw, h)
}

func serveOn(t testing.TB, raw net.Listener, h http.HandlerFunc) *listener {
	l := &listener{Listener: raw}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}}
	s.Start()
	t.Cleanup(s.Close)
	return l
}

// serveAtBoth starts receivers at the same port of two addresses. A port that is free at the first
// address may be in use at the second.
func serveAtBoth(t testing.TB, a, b string, h http.HandlerFunc) (port string, la, lb *listener) {
	t.Helper()
	var lc net.ListenConfig
	for range 100 {
		second, err := lc.Listen(t.Context(), "tcp", b+":0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(second.Addr().String())
		first, err := lc.Listen(t.Context(), "tcp", a+":"+port)
		if err != nil {
			second.Close()
			continue
		}
		return port, serveOn(t, first, h), serveOn(t, second, h)
	}
	t.Fatal("no port is free at both addresses")
	return "", nil, nil
}

func fine(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "fine") }

func egress(t testing.TB, cfg EgressConfig) *Egress {
	t.Helper()
	e, err := NewEgress(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

var onLoopback = EgressPolicy{Allow: prefixes("127.0.0.0/8"), AnyPort: true, Plain: true}

func post(t testing.TB, e *Egress, raw string) result {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return e.post(t.Context(), u, http.Header{"Content-Type": {"application/json"}}, []byte(`{}`))
}

// No name leads to a denied address, whatever DNS record the name has: the guard sees the address
// of the system call.
func TestNoConnectionToDenied(t *testing.T) {
	t.Parallel()
	port, l := serveAt(t, "127.0.0.1:0", fine)
	ns := &nameServer{answers: map[string][][]string{}}
	e := egress(t, EgressConfig{Policy: EgressPolicy{AnyPort: true, Plain: true}, Resolver: ns.resolver()})
	n := 0
	for a, why := range deniedAddresses {
		if a == "::ffff:8.8.8.8" {
			continue // package net calls it over IPv4, where it is a public address
		}
		name := "host-" + strings.NewReplacer(":", "-", ".", "-").Replace(a) + "-x.test"
		ns.mu.Lock()
		ns.answers[name] = [][]string{{a}}
		ns.mu.Unlock()
		for _, raw := range []string{"http://" + name + ":" + port + "/", "https://" + name + ":" + port + "/", literal(a, port)} {
			n++
			r := post(t, e, raw)
			if r.class != ClassDenied || !r.isPermanent() || r.status != 0 {
				t.Errorf("%s (%s): %+v", raw, why, r)
			}
		}
	}
	for _, raw := range []string{"http://localhost:" + port + "/", "http://0/", "http://[::1]:" + port + "/"} {
		if r := post(t, e, raw); r.class == ClassOK || r.address != "" {
			t.Errorf("%s: %+v", raw, r)
		}
	}
	if got := l.accepted.Load(); got != 0 {
		t.Errorf("%d connections came to a denied address", got)
	}
	t.Logf("%d calls to %d addresses", n, len(deniedAddresses))

	// The same receiver is reached if its address is allowed. So it was the guard that prevented
	// the call.
	open := egress(t, EgressConfig{Policy: onLoopback})
	if r := post(t, open, "http://127.0.0.1:"+port+"/"); r.class != ClassOK || r.status != 200 || string(r.body) != "fine" || r.address != "127.0.0.1:"+port {
		t.Errorf("allowed: %+v", r)
	}
}

func literal(a, port string) string {
	if strings.Contains(a, ":") {
		return "http://[" + a + "]:" + port + "/"
	}
	return "http://" + a + ":" + port + "/"
}

// A name that was checked may have another address when it is called. Only the second address
// counts.
func TestRebinding(t *testing.T) {
	t.Parallel()
	port, l := serveAt(t, "127.0.0.1:0", fine)
	ns := &nameServer{answers: map[string][][]string{"rebind.test": {{"1.1.1.1"}, {"127.0.0.1"}}}}
	e := egress(t, EgressConfig{Policy: EgressPolicy{AnyPort: true, Plain: true}, Resolver: ns.resolver()})
	v, err := e.CheckURL(t.Context(), "http://rebind.test:"+port+"/")
	if err != nil || !v.Allowed || len(v.Addresses) != 1 || v.Addresses[0].Address.String() != "1.1.1.1" {
		t.Fatalf("verdict %+v, %v", v, err)
	}
	if r := post(t, e, "http://rebind.test:"+port+"/"); r.class != ClassDenied {
		t.Errorf("after the change: %+v", r)
	}
	v, err = e.CheckURL(t.Context(), "http://rebind.test:"+port+"/")
	if err != nil || v.Allowed || v.Addresses[0].Why != "loopback" {
		t.Errorf("verdict %+v, %v", v, err)
	}
	if l.accepted.Load() != 0 {
		t.Error("connected to the denied address")
	}
}

// If a name has several addresses, only the allowed ones are called.
func TestMixedAddresses(t *testing.T) {
	t.Parallel()
	port, bad, good := serveAtBoth(t, "127.0.0.1", "127.0.0.2", fine)
	ns := &nameServer{answers: map[string][][]string{"mixed.test": {{"127.0.0.1", "10.0.0.1", "127.0.0.2"}}}}
	p := EgressPolicy{Allow: prefixes("127.0.0.2/32"), AnyPort: true, Plain: true}
	e := egress(t, EgressConfig{Policy: p, Resolver: ns.resolver()})
	if r := post(t, e, "http://mixed.test:"+port+"/"); r.class != ClassOK || r.address != "127.0.0.2:"+port {
		t.Errorf("%+v", r)
	}
	if bad.accepted.Load() != 0 || good.accepted.Load() != 1 {
		t.Errorf("%d connections to the denied, %d to the allowed", bad.accepted.Load(), good.accepted.Load())
	}
	v, err := e.CheckURL(t.Context(), "http://mixed.test:"+port+"/")
	if err != nil || !v.Allowed || len(v.Addresses) != 3 {
		t.Fatalf("verdict %+v, %v", v, err)
	}
	for _, a := range v.Addresses {
		if a.Allowed != (a.Address.String() == "127.0.0.2") || a.Allowed != (a.Why == "") {
			t.Errorf("verdict %+v", a)
		}
	}
}

// A redirect is treated as an answer and is not followed.
func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	inner, l := serveAt(t, "127.0.0.1:0", fine)
	for _, status := range []int{301, 302, 303, 307, 308} {
		port, _ := serveAt(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:"+inner+"/secret", status)
		})
		r := post(t, egress(t, EgressConfig{Policy: onLoopback}), "http://127.0.0.1:"+port+"/")
		if r.class != ClassRedirect || r.isPermanent() || r.status != status || !strings.Contains(r.detail, "/secret") {
			t.Errorf("%d: %+v", status, r)
		}
	}
	if n := l.accepted.Load(); n != 0 {
		t.Errorf("%d connections to where a redirect led", n)
	}
}

// Proxies of the environment are not used. (TestMain sets them for the whole package, because
// net/http reads them only once.)
func TestProxyIsIgnored(t *testing.T) {
	t.Parallel()
	port, l := serveAt(t, "127.0.0.1:0", fine)
	ns := &nameServer{answers: map[string][][]string{"shop.test": {{"127.0.0.1"}}}}
	e := egress(t, EgressConfig{Policy: onLoopback, Resolver: ns.resolver()})
	if r := post(t, e, "http://shop.test:"+port+"/"); r.class != ClassOK || r.address != "127.0.0.1:"+port {
		t.Errorf("%+v", r)
	}
	if l.accepted.Load() != 1 || theProxy.accepted.Load() != 0 {
		t.Errorf("%d connections to the receiver, %d to the proxy", l.accepted.Load(), theProxy.accepted.Load())
	}
	// By default net/http would use the proxy.
	u, _ := url.Parse("http://shop.test:" + port + "/")
	if via, err := http.ProxyFromEnvironment(&http.Request{URL: u}); err != nil || via == nil {
		t.Fatalf("the environment names no proxy (%v): this test shows nothing", err)
	}
}

// A connection that was allowed once does not outlive the policy it was allowed
// by.
func TestPolicyChangeClosesConnections(t *testing.T) {
	t.Parallel()
	port, l := serveAt(t, "127.0.0.1:0", fine)
	e := egress(t, EgressConfig{Policy: onLoopback})
	u := "http://127.0.0.1:" + port + "/"
	for range 3 {
		if r := post(t, e, u); r.class != ClassOK {
			t.Fatalf("%+v", r)
		}
	}
	if n := l.accepted.Load(); n != 1 {
		t.Fatalf("%d connections for 3 calls: none was used again, this test shows nothing", n)
	}
	if err := e.SetPolicy(EgressPolicy{AnyPort: true, Plain: true}); err != nil {
		t.Fatal(err)
	}
	if r := post(t, e, u); r.class != ClassDenied {
		t.Errorf("over an old connection: %+v", r)
	}
	if err := e.SetPolicy(EgressPolicy{Allow: prefixes("::ffff:0:0/96")}); err == nil {
		t.Error("a bad policy is taken")
	}
	if r := post(t, e, u); r.class != ClassDenied {
		t.Errorf("after a bad policy: %+v", r)
	}
}

// Only a limited part of an endless answer is read, and the connection of that answer is not used
// again.
func TestHugeAnswer(t *testing.T) {
	t.Parallel()
	sent := make(chan int, 10)
	port, l := serveAt(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		n := 0
		for r.Context().Err() == nil {
			k, err := w.Write(bytes.Repeat([]byte("x"), 32<<10))
			if n += k; err != nil {
				break
			}
		}
		sent <- n
	})
	e := egress(t, EgressConfig{Policy: onLoopback, Timeout: time.Hour})
	for range 2 {
		r := post(t, e, "http://127.0.0.1:"+port+"/")
		if r.class != ClassOK || len(r.body) != maxExcerpt {
			t.Errorf("%s, %d bytes kept", r.class, len(r.body))
		}
		<-sent // it ended: the client hung up
	}
	if n := l.accepted.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// However slowly an answer comes, the exchange ends.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	hang := func(r *http.Request) { <-r.Context().Done() }
	e := egress(t, EgressConfig{Policy: onLoopback, Timeout: 100 * time.Millisecond})
	f := func(h http.HandlerFunc, class string) {
		t.Helper()
		port, _ := serveAt(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body) // otherwise the server would not notice the end of the call
			h(w, r)
		})
		if r := post(t, e, "http://127.0.0.1:"+port+"/"); r.class != class {
			t.Errorf("%+v, want %s", r, class)
		}
	}
	f(func(_ http.ResponseWriter, r *http.Request) { hang(r) }, ClassTimeout)
	f(func(w http.ResponseWriter, r *http.Request) { // sends the headers, and then no end
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		hang(r)
	}, ClassOK)
	f(func(w http.ResponseWriter, r *http.Request) { // never sends the end of its headers
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		for r.Context().Err() == nil {
			if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nX"); err != nil {
				return
			}
			var b [1]byte
			if _, err := c.Read(b[:]); err != nil { // the client hung up
				return
			}
		}
	}, ClassTimeout)
}

func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	e := egress(t, EgressConfig{Policy: onLoopback})
	raw := func(answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				io.WriteString(c, answer)
				c.Close()
			}
		}
	}
	f := func(h http.HandlerFunc, class string) {
		t.Helper()
		port, _ := serveAt(t, "127.0.0.1:0", h)
		if r := post(t, e, "http://127.0.0.1:"+port+"/"); r.class != class || r.isPermanent() {
			t.Errorf("%+v, want %s", r, class)
		}
	}
	f(raw(""), ClassConnect)
	f(raw("nonsense\r\n\r\n"), ClassRetry)
	f(raw("HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 1<<20)+"\r\n\r\n"), ClassRetry)
	f(raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"), ClassOK) // the status alone decides
	// Port 1, because a port that was free a moment ago may be in use by now.
	if r := post(t, e, "http://127.0.0.1:1/"); r.class != ClassConnect {
		t.Errorf("nobody there: %+v", r)
	}
	ns := &nameServer{}
	if r := post(t, egress(t, EgressConfig{Policy: onLoopback, Resolver: ns.resolver()}), "http://nowhere.test/"); r.class != ClassDNS {
		t.Errorf("no such name: %+v", r)
	}
}

func tlsServer(t *testing.T, change func(*httptest.Server)) (*httptest.Server, *x509.CertPool) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS10}
	if change != nil {
		change(s)
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s, roots
}

// Connections use TLS 1.2 or later with a verified certificate, and HTTP/2 if the receiver supports
// it.
func TestTLS(t *testing.T) {
	t.Parallel()
	s, roots := tlsServer(t, nil)
	if r := post(t, egress(t, EgressConfig{Policy: onLoopback, RootCAs: roots}), s.URL); r.class != ClassOK || string(r.body) != "HTTP/2.0" {
		t.Errorf("HTTP/2: %+v, %s", r, r.body)
	}
	if r := post(t, egress(t, EgressConfig{Policy: onLoopback}), s.URL); r.class != ClassTLS || r.isPermanent() {
		t.Errorf("unknown authority: %+v", r)
	}
	old, oldRoots := tlsServer(t, func(s *httptest.Server) { s.TLS.MaxVersion = tls.VersionTLS11 })
	if r := post(t, egress(t, EgressConfig{Policy: onLoopback, RootCAs: oldRoots}), old.URL); r.class != ClassTLS {
		t.Errorf("TLS 1.1: %+v", r)
	}
	plain, _ := serveAt(t, "127.0.0.1:0", fine)
	if r := post(t, egress(t, EgressConfig{Policy: onLoopback}), "https://127.0.0.1:"+plain); r.class != ClassTLS {
		t.Errorf("no TLS at all: %+v", r)
	}
}

func TestCheckURLRefuses(t *testing.T) {
	t.Parallel()
	ns := &nameServer{}
	e := egress(t, EgressConfig{Resolver: ns.resolver()})
	if _, err := e.CheckURL(t.Context(), "http://shop.test/"); err == nil {
		t.Error("http is admitted")
	}
	if _, err := e.CheckURL(t.Context(), "https://nowhere.test/"); err == nil {
		t.Error("a name without an address is fine")
	}
	v, err := e.CheckURL(t.Context(), "https://[::1]/")
	if err != nil || v.Allowed || len(v.Addresses) != 1 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestRetryAfterHeader(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	f := func(v string, want time.Duration) {
		t.Helper()
		if got := parseRetryAfter(v, now); got != want {
			t.Errorf("%q: %v, want %v", v, got, want)
		}
	}
	f("", 0)
	f("0", 0)
	f("120", 2*time.Minute)
	f("-1", 0)
	f("1.5", 0)
	f("99999999999999999999", 0)
	f("Sat, 21 Nov 2026 10:00:30 GMT", 30*time.Second)
	f("Sat, 21 Nov 2026 09:00:00 GMT", 0)
	f("soon", 0)
}

// TestAdmit: a URL that is only stored for later is refused at once if it can never be called. A
// name is admitted, because DNS may give another answer tomorrow.
func TestAdmit(t *testing.T) {
	t.Parallel()
	e, err := NewEgress(EgressConfig{Policy: EgressPolicy{Allow: prefixes("10.1.0.0/16")}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for raw, code := range map[string]string{
		"https://10.0.0.1/x": "address_denied", "https://[::1]/x": "address_denied", "https://169.254.169.254/x": "address_denied", "https://shop.example:25/x": "port_denied",
		"http://1.1.1.1/x": "url_scheme", "https://10.1.0.1/x": "", "https://1.1.1.1/x": "", "https://localhost/x": "", "https://shop.example/x": "",
	} {
		got := ""
		if f, ok := errors.AsType[*notify.Error](e.Admit("outcomes_url", raw)); ok {
			if got = f.Code; f.Field != "outcomes_url" || f.Kind != notify.KindInvalid {
				t.Errorf("%s: %v", raw, f)
			}
		}
		if got != code {
			t.Errorf("%s: %q, want %q", raw, got, code)
		}
	}
}

// TestSwitchedProtocols: after the answer 101 the transport no longer watches the context. So the
// call waits for nothing that comes after this answer.
func TestSwitchedProtocols(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var held sync.WaitGroup
	held.Add(1) // the one call; counted here, so that it comes before Wait
	port, _ := serveAt(t, "127.0.0.1:0", func(w http.ResponseWriter, _ *http.Request) {
		defer held.Done()
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		<-release
	})
	t.Cleanup(func() { close(release); held.Wait() })
	e := egress(t, EgressConfig{Policy: onLoopback, Timeout: time.Minute})
	done := make(chan result, 1)
	u, err := url.Parse("http://127.0.0.1:" + port + "/")
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- e.post(context.Background(), u, http.Header{}, nil) }()
	select {
	case r := <-done:
		if r.status != 101 || r.class != ClassRetry {
			t.Errorf("%+v", r)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the call waits for an end that does not come")
	}
}

// TestDeniedTellsNoAddress: a caller can read the detail of an error. The detail must not say which
// address DNS returns inside our network.
func TestDeniedTellsNoAddress(t *testing.T) {
	t.Parallel()
	ns := &nameServer{answers: map[string][][]string{"inner.test": {{"10.1.2.3"}}, "shut.test": {{"8.8.8.8"}}}}
	e := egress(t, EgressConfig{Policy: EgressPolicy{AnyPort: true, Plain: true, Deny: prefixes("8.8.8.0/24")}, Resolver: ns.resolver()})
	for host, hidden := range map[string]string{"inner.test": "10.1.2.3", "shut.test": "8.8.8"} {
		if r := post(t, e, "http://"+host+"/"); r.class != ClassDenied || r.detail == "" || strings.Contains(r.detail, hidden) {
			t.Errorf("%s: %+v", host, r)
		}
	}
}
