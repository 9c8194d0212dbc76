package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// domain is the attacker's domain. Each name in the domain encodes the addresses to which the name
// resolves; see records.
const domain = "attack.test"

// publicV4 and publicV6 are addresses that callbacks may go to.
const (
	publicV4 = "93.184.216.34"
	publicV6 = "2606:2800:220:1:248:1893:25c8:1946"
)

// canary listens on every address of the namespace, at ports that an attacker would like to
// reach. It records the destination address of each connection.
type canary struct {
	mu   sync.Mutex
	seen map[netip.Addr]int // number of connections, by destination address
	told map[string]int     // number of requests, by path

	asked map[string]int // number of look-ups of each rebind- name, by query type and label
	cert  tls.Certificate
	close []func() error
}

// open starts the listeners and the name server. It writes the CA certificate to caFile. The
// caller must call end, also if open panics.
func (c *canary) open(caFile string) {
	c.certify(caFile)
	for _, port := range []string{"22", "80", "443", "3128", "8080", "8443"} {
		ln := rig.Must(net.Listen("tcp", ":"+port))
		ln = &watched{ln, c}
		if strings.HasSuffix(port, "443") {
			ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{c.cert}, MinVersion: tls.VersionTLS12})
		}
		srv := &http.Server{Handler: http.HandlerFunc(c.answer), ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
		c.close = append(c.close, srv.Close)
		go func() { _ = srv.Serve(ln) }()
	}
	pc := rig.Must(net.ListenPacket("udp", nameServer+":53"))
	c.close = append(c.close, pc.Close)
	go c.resolve(pc)
}

func (c *canary) end() {
	for _, f := range c.close {
		_ = f()
	}
}

// certify creates a certificate for all names of the domain. It writes the certificate to caFile,
// and the servers trust that file as a CA.
func (c *canary) certify(caFile string) {
	key := rig.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{domain, "*." + domain, "localhost"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der := rig.Must(x509.CreateCertificate(rand.Reader, t, t, key.Public(), key))
	c.cert = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	rig.Ok(os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
}

// watched is a listener that records the address to which each connection was made.
type watched struct {
	net.Listener
	c *canary
}

func (w *watched) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if a, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		w.c.mu.Lock()
		w.c.seen[a.AddrPort().Addr().Unmap()]++
		w.c.mu.Unlock()
	}
	return conn, nil
}

// firstSeen returns the destination address of a recorded connection, or "" if there was none. It
// ignores publicV4 and publicV6. If the parameter wanted is a valid address, only connections to
// this address count.
func (c *canary) firstSeen(wanted netip.Addr) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for a := range c.seen {
		if wanted.IsValid() && a != wanted || a == netip.MustParseAddr(publicV4) || a == netip.MustParseAddr(publicV6) {
			continue
		}
		return a.String()
	}
	return ""
}

func (c *canary) requests(path string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told[path]
}

// answer is the HTTP handler for callbacks. The path of the request selects the answer.
func (c *canary) answer(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.told[r.URL.Path]++
	c.mu.Unlock()
	first, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch first {
	case "redirect": // to the URL in the query parameter "to", with the status from the path
		w.Header().Set("Location", r.URL.Query().Get("to"))
		status := map[string]int{"301": 301, "302": 302, "303": 303, "307": 307, "308": 308}[rest]
		w.WriteHeader(status)
	case "raw": // an answer that net/http would not write; the connection stays open for 2 min
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = buf.WriteString(rawAnswers[rest])
		_ = buf.Flush()
		time.AfterFunc(2*time.Minute, func() { _ = conn.Close() })
	case "escape":
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte("\x1b]52;c;AAAA\x07\x1b[31m"))
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// rawAnswers are answers that are incomplete or malformed. The receiver keeps the connection open
// after each of them, so only the server can end the call.
var rawAnswers = map[string]string{
	"101":     "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
	"early":   strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 20),
	"silent":  "",
	"half":    "HTTP/1.1 200 OK\r\nContent-Le",
	"short":   "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nx",
	"chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\nx",
	"status":  "HTTP/1.1 999 X\r\nContent-Length: 10\r\n\r\n",
	"header":  "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 64<<10),
	"garbage": "\x00\x01\x02SSH-2.0-x\r\n\r\n",
}

// resolve answers DNS look-ups until pc is closed.
func (c *canary) resolve(pc net.PacketConn) {
	b := make([]byte, 1500)
	for {
		n, from, err := pc.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		var m dnsmessage.Message
		if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		m.Answers = c.records(q)
		if out, err := m.Pack(); err == nil {
			_, _ = pc.WriteTo(out, from)
		}
	}
}

// records returns the DNS records that answer a question. The first label of the name selects the
// records:
//
//	a-<hex>-<hex>       all of these addresses
//	rebind-<hex>-<hex>  one address per look-up, in order; then always the last address
//	cname-<hex>         an alias of the name a-<hex>
//	any other label     publicV4 and publicV6
func (c *canary) records(q dnsmessage.Question) (out []dnsmessage.Resource) {
	label, rest, _ := strings.Cut(strings.TrimSuffix(q.Name.String(), "."), ".")
	if !strings.EqualFold(rest, domain) {
		return nil
	}
	parts := strings.Split(label, "-")
	name := q.Name
	switch parts[0] {
	case "cname":
		alias, err := dnsmessage.NewName("a-" + parts[1] + "." + domain + ".")
		if err != nil {
			return nil
		}
		out = append(out, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name, Class: q.Class}, Body: &dnsmessage.CNAMEResource{CNAME: alias}})
		name = alias
	case "rebind":
		c.mu.Lock()
		at := min(c.asked[q.Type.String()+label], len(parts)-2)
		c.asked[q.Type.String()+label]++
		c.mu.Unlock()
		parts = []string{"", parts[1+at]}
	case "a":
	default:
		parts = []string{"", hexOf(publicV4), hexOf(publicV6)}
	}
	for _, text := range parts[1:] {
		b, err := hex.DecodeString(text)
		if err != nil {
			continue
		}
		h := dnsmessage.ResourceHeader{Name: name, Class: q.Class} // with a TTL of 0
		switch {
		case len(b) == 4 && q.Type == dnsmessage.TypeA:
			out = append(out, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: [4]byte(b)}})
		case len(b) == 16 && q.Type == dnsmessage.TypeAAAA:
			out = append(out, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: [16]byte(b)}})
		}
	}
	return out
}

// hexOf returns the hex form of an address. Names in the attacker's domain contain it.
func hexOf(addr string) string { return hex.EncodeToString(netip.MustParseAddr(addr).AsSlice()) }

// nameFor returns a name that resolves to addrs.
func nameFor(addrs ...string) string {
	label := "a"
	for _, a := range addrs {
		label += "-" + hexOf(a)
	}
	return label + "." + domain
}

// canConnect opens a TCP connection to address and closes it. It returns an error if nothing
// listens at the address.
func canConnect(ctx context.Context, address string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}
