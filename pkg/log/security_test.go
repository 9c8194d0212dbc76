package log

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/pkg/secrets"
)

// papers has the files of a temporary certificate authority, as scripts/engines/certs.sh makes
// them, and the password of the user notifyd.
type papers struct {
	dir, password string
}

func (p papers) file(name string) string { return filepath.Join(p.dir, name) }

// secret makes a file with the given mode, whatever the umask is.
func (p papers) secret(t *testing.T, name, content string, mode os.FileMode) string {
	t.Helper()
	err := os.WriteFile(p.file(name), []byte(content), 0o600)
	if err == nil {
		err = os.Chmod(p.file(name), mode)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p.file(name)
}

// conn returns a Conn in which everything is right.
func (p papers) conn(brokers ...string) Conn {
	return Conn{
		Brokers: brokers,
		TLS:     secrets.TLS{Enabled: true, CAFile: p.file("ca.pem"), CertFile: p.file("client.pem"), KeyFile: p.file("client.key")},
		SASL:    &SASL{User: "notifyd", Password: fromFile(p.file("notifyd.password"))},
	}
}

// makePapers makes the same files as certs.sh, without openssl.
func makePapers(t *testing.T) papers {
	t.Helper()
	p := papers{t.TempDir(), "secret-" + rand.Text()}
	write := func(name, kind string, der []byte) {
		if err := os.WriteFile(p.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	type pair struct {
		cert *x509.Certificate
		key  *ecdsa.PrivateKey
	}
	issue := func(name string, by *pair) *pair {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: by == nil, BasicConstraintsValid: true,
			DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}
		if by == nil {
			c.KeyUsage, by = x509.KeyUsageCertSign, &pair{c, key}
		}
		der, err := x509.CreateCertificate(rand.Reader, c, by.cert, &key.PublicKey, by.key)
		if err != nil {
			t.Fatal(err)
		}
		secret, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write(name+".pem", "CERTIFICATE", der)
		write(name+".key", "PRIVATE KEY", secret)
		return &pair{c, key}
	}
	ca, other := issue("ca", nil), issue("other-ca", nil)
	issue("server", ca)
	issue("client", ca)
	issue("other-client", other)
	if err := os.WriteFile(p.file("notifyd.password"), []byte(p.password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// Every wrong way to connect fails, with an error that does not contain the password. The right way
// works for each kind of client.
func TestSecured(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		p := makePapers(t)
		ca, err := os.ReadFile(p.file("ca.pem"))
		if err != nil {
			t.Fatal(err)
		}
		server := &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		server.ClientCAs.AppendCertsFromPEM(ca)
		cert, err := tls.LoadX509KeyPair(p.file("server.pem"), p.file("server.key"))
		if err != nil {
			t.Fatal(err)
		}
		server.Certificates = []tls.Certificate{cert}
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(server), kfake.EnableSASL(),
			kfake.Superuser("PLAIN", "notifyd", p.password), kfake.Superuser("SCRAM-SHA-512", "notifyd", p.password), kfake.Superuser("SCRAM-SHA-256", "notifyd", p.password))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		secured(t, p, c.ListenAddrs()[0], SCRAM512, SCRAM256, PLAIN)
	})
	t.Run("kafka", func(t *testing.T) {
		t.Parallel()
		k := startKafka(t, 1, "KAFKA_SECURE=1")
		password, err := os.ReadFile(filepath.Join(k.dir, "kafka", "certs", "notifyd.password"))
		if err != nil {
			t.Fatal(err)
		}
		secured(t, papers{filepath.Join(k.dir, "kafka", "certs"), strings.TrimSpace(string(password))}, k.brokers[0], SCRAM512, SCRAM256, PLAIN, OAUTHBEARER)
	})
}

// unsignedToken is a JWT that a broker without an issuer takes: Kafka's own validator for
// development.
func unsignedToken(sub string) string {
	part := func(v any) string {
		b, _ := json.Marshal(v) // of strings and numbers
		return base64.RawURLEncoding.EncodeToString(b)
	}
	now := time.Now().Unix()
	return part(map[string]any{"alg": "none"}) + "." + part(map[string]any{"sub": sub, "iat": now, "exp": now + 3600}) + "."
}

func secured(t *testing.T, p papers, addr string, mechanisms ...Mechanism) {
	topic := ""
	for _, m := range mechanisms {
		conn := p.conn(addr)
		if conn.SASL.Mechanism = m; m == OAUTHBEARER {
			conn.SASL.User, conn.SASL.Password = "", func() (string, error) { return unsignedToken("notifyd"), nil }
		}
		b := newKafka(t, conn, 1) // admin
		topic = b.topic
		b.append(t, numbered(topic, 0, 0, 10))
		probe, err := NewProbe(ProbeConfig{Conn: conn, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		probe.pingOnce(t.Context())
		probe.cl.Close()
		if err := probe.Err(); err != nil {
			t.Errorf("%s: probe: %v", m, err)
		}
		if got := b.collect(t, b.topic); len(got) != 10 {
			t.Errorf("%s: %d records", m, len(got))
		}
		member := start(t, GroupConfig{Conn: conn, Group: b.group, Topics: []string{b.topic}}, handlerFunc(
			func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				for _, msg := range msgs {
					msg.Done()
				}
				return nil
			}))
		b.waitCommitted(t, TopicPartition{b.topic, 0}, 10)
		if err := member.wait(); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(p.file("wrong.password"), []byte("wrong-"+p.password), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		spoil func(*Conn)
		says  string
	}{
		"plain":                 {func(c *Conn) { c.TLS.Enabled = false }, "plaintext"},
		"nobody":                {func(c *Conn) { c.SASL = nil }, "SASL"},
		"wrong password":        {func(c *Conn) { c.SASL.Password = fromFile(p.file("wrong.password")) }, "invalid credentials|EOF"},
		"unknown user":          {func(c *Conn) { c.SASL.User = "mallory" }, "invalid credentials|EOF"},
		"another authority":     {func(c *Conn) { c.TLS.CAFile = p.file("other-ca.pem") }, "unknown authority"},
		"the system's":          {func(c *Conn) { c.TLS.CAFile = "" }, "unknown authority"},
		"another server's name": {func(c *Conn) { c.TLS.ServerName = "elsewhere.example" }, "not elsewhere.example"},
		"no certificate":        {func(c *Conn) { c.TLS.CertFile, c.TLS.KeyFile = "", "" }, "certificate"},
		"another's certificate": {func(c *Conn) {
			c.TLS.CertFile, c.TLS.KeyFile = p.file("other-client.pem"), p.file("other-client.key")
		}, "certificate"},
	} {
		conn := p.conn(addr)
		x.spoil(&conn)
		var said lockedBuffer
		conn.Logger = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
		producer, err := NewProducer(ProducerConfig{Conn: conn})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		err = producer.Append(t.Context(), numbered(topic, 0, 0, 1))
		producer.Close()
		if !isLogUnavailable(err) {
			t.Errorf("%s: %v", name, err)
		}
		adm, err2 := NewAdmin(AdminConfig{Conn: conn})
		if err2 != nil {
			t.Fatal(err2)
		}
		for end := time.Now().Add(5 * time.Minute); ; {
			_, err2 = adm.Describe(t.Context(), topic) // what doctor shows
			if err2 != nil && regexp.MustCompile(x.says).MatchString(err2.Error()) {
				break
			}
			if err2 == nil || time.Now().After(end) { // otherwise the machine was too busy to give the answer in time
				t.Errorf("%s: %v, want one that says %s", name, err2, x.says)
				break
			}
		}
		adm.Close()
		if all := fmt.Sprint(said.String(), err, err2); strings.Contains(all, p.password) {
			t.Errorf("%s: the password is in %s", name, all)
		}
	}
}

// lockedBuffer is a buffer that several goroutines may write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// However a connection is printed, the text does not contain the password.
func TestPasswordsAreNeverPrinted(t *testing.T) {
	t.Setenv("STREAM_TEST_PASSWORD", "hunter2")
	conn := Conn{Brokers: []string{"b:1"}, SASL: &SASL{User: "notifyd", Password: fromEnv("STREAM_TEST_PASSWORD")}, TLS: secrets.TLS{Enabled: true}, Rack: "a"}
	p := newProducer(t, ProducerConfig{Conn: conn})
	var out lockedBuffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("here", "conn", conn, "sasl", conn.SASL, "config", p.cfg, "struct", struct{ c Conn }{conn})
	}
	j, err := json.Marshal(conn.SASL)
	if err != nil {
		t.Error(err)
	}
	text := out.String() + string(j) + fmt.Sprintf("%v %+v %#v %s %v %+v %#v", conn, conn, conn, conn, conn.SASL, *conn.SASL, p.cfg)
	if strings.Contains(text, "hunter2") {
		t.Error(text)
	}
	if want := "b:1 tls SCRAM-SHA-512 notifyd rack a"; conn.String() != want {
		t.Errorf("%q, want %q", conn.String(), want)
	}
}

func TestConnIsChecked(t *testing.T) {
	t.Setenv("STREAM_TEST_PASSWORD", "x")
	p := makePapers(t)
	ok := func() Conn {
		c := p.conn("b:1")
		c.SASL.Password = fromEnv("STREAM_TEST_PASSWORD")
		return c
	}
	c := ok()
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		change func(*Conn)
		says   string
	}{
		"no brokers":    {func(c *Conn) { c.Brokers = nil }, "no broker is given"},
		"no CA":         {func(c *Conn) { c.TLS.CAFile = p.file("missing") }, "missing"},
		"CA is a key":   {func(c *Conn) { c.TLS.CAFile = p.file("ca.key") }, "no certificate in"},
		"half a pair":   {func(c *Conn) { c.TLS.KeyFile = "" }, "or neither"},
		"mixed pair":    {func(c *Conn) { c.TLS.KeyFile = p.file("ca.key") }, "cert_file"},
		"dialer":        {func(c *Conn) { c.Dial = (&net.Dialer{}).DialContext }, "dialer"},
		"no user":       {func(c *Conn) { c.SASL.User = "" }, "user"},
		"no password":   {func(c *Conn) { c.SASL.Password = nil }, "password"},
		"unset":         {func(c *Conn) { c.SASL.Password = fromEnv("STREAM_TEST_NOT_SET") }, "STREAM_TEST_NOT_SET is not set"},
		"missing file":  {func(c *Conn) { c.SASL.Password = fromFile(p.file("missing")) }, "missing"},
		"empty file":    {func(c *Conn) { c.SASL.Password = fromFile(p.secret(t, "empty", "", 0o600)) }, "empty"},
		"open password": {func(c *Conn) { c.SASL.Password = fromFile(p.secret(t, "open", "x", 0o644)) }, "can be accessed by everybody on this machine: chmod 600"},
		"open key": {func(c *Conn) {
			b, err := os.ReadFile(c.TLS.KeyFile)
			if err != nil {
				t.Fatal(err)
			}
			c.TLS.KeyFile = p.secret(t, "open.key", string(b), 0o604)
		}, "can be accessed by everybody on this machine: chmod 600"},
		"unknown":        {func(c *Conn) { c.SASL.Mechanism = "GSSAPI" }, `not "GSSAPI"`},
		"plain in clear": {func(c *Conn) { c.SASL.Mechanism, c.TLS = PLAIN, secrets.TLS{} }, "PLAIN sends the password, so TLS must be enabled (tls.enabled)"},
		"token in clear": {func(c *Conn) { c.SASL.Mechanism, c.TLS = OAUTHBEARER, secrets.TLS{} }, "OAUTHBEARER sends the password, so TLS must be enabled (tls.enabled)"},
	} {
		c := ok()
		x.change(&c)
		if err := c.validate(); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// OneBroker, the short way to the embedded broker, is refused for a cluster.
func TestOneBrokerIsNoCluster(t *testing.T) {
	t.Parallel()
	for _, c := range []Conn{{Brokers: []string{"a:1", "b:1"}}, {Brokers: []string{"a:1"}, TLS: secrets.TLS{Enabled: true}}} {
		if _, err := NewProducer(ProducerConfig{Conn: c, Brokers: OneBroker}); err == nil {
			t.Errorf("%s: accepted", c)
		}
	}
}

// A client tells the brokers its rack with every fetch.
func TestRackIsTold(t *testing.T) {
	t.Parallel()
	b := newBroker(t, 1, "topic")
	b.conn.Rack = "rack-7"
	racks := make(chan string, 1000)
	b.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.KeepControl()
		select {
		case racks <- r.(*kmsg.FetchRequest).Rack:
		default:
		}
		return nil, nil, false
	})
	b.append(t, numbered("topic", 0, 0, 1))
	b.collect(t, "topic")
	if r := <-racks; r != "rack-7" {
		t.Errorf("rack %q", r)
	}
}

// fromFile reads a secret from a file, without the end of its last line. A file that
// everybody on the machine can read is refused (notify.KindInvalid "secret_exposed").
func fromFile(name string) Secret {
	return func() (string, error) {
		b, err := secrets.ReadFile(name)
		if err == nil && len(strings.TrimRight(string(b), "\r\n")) == 0 {
			err = fmt.Errorf("%s is empty", name)
		}
		return strings.TrimRight(string(b), "\r\n"), err
	}
}

// fromEnv takes a secret from a variable of the environment.
func fromEnv(name string) Secret {
	return func() (string, error) {
		v := os.Getenv(name)
		if v == "" {
			return "", fmt.Errorf("%s is not set", name)
		}
		return v, nil
	}
}
