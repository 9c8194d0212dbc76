package simulator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Simulator holds the four providers, the callback receiver and their control listener. Its
// methods are safe for concurrent use.
type Simulator struct {
	cfg  Config
	log  *slog.Logger
	now  func() time.Time
	seed uint64
	keys *keyring
	ca   *authority

	rules    *ruleList
	ledger   *Ledger
	inbox    *inbox
	receipts *receiptSender
	latency  [allProviders + 1]atomic.Pointer[Latency] // latency of each Provider
	drawn    atomic.Uint64                             // number of latencies drawn so far
	optedOut sync.Map                                  // phone number -> struct{}

	apns   *apnsServer
	wire   *wireServer
	fcm    *fcmServer
	twilio *twilioServer
	mail   *mailServer
	calls  *callbackServer

	listeners [6]net.Listener // in the order of the fields of Addrs
	stopping  chan struct{}   // closed when Run ends; this ends hanging requests

	mu  sync.Mutex
	ran bool // true: Run or Close was called; mu guards it
}

// Addrs holds the addresses of the listeners, as host:port.
type Addrs struct {
	APNs, FCM, Twilio, SendGrid, Control, Callback string
}

// URLs holds the base URLs of the providers and of the pages, without a slash at the end.
type URLs struct {
	APNs     string `json:"apns"`
	FCM      string `json:"fcm"`
	FCMToken string `json:"fcm_token"`
	Twilio   string `json:"twilio"`
	SendGrid string `json:"sendgrid"`
	Control  string `json:"control"`
	Inbox    string `json:"inbox"`
	Callback string `json:"callback"`
}

// New derives the keys, reads the ledger file and binds the ports. It does not serve yet. The
// caller must call Run to serve, or Close to free the ports. New returns an error of
// notify.KindInvalid if the configuration is wrong.
func New(cfg Config) (*Simulator, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	sd, err := newSeed(cfg.Dir, cfg.Seed)
	if err != nil {
		return nil, err
	}
	s := &Simulator{cfg: cfg, log: cfg.Log, now: cfg.Now, seed: sd.number(), stopping: make(chan struct{})}
	if s.keys, err = newKeyring(sd, cfg); err != nil {
		return nil, err
	}
	s.rules = newRules(s.seed, s.now)
	s.ledger = NewLedger(cfg.Dir, cfg.LedgerMemory)
	s.inbox = newInbox(cfg.InboxSize)
	s.resetLatency()
	if err := s.bind(sd); err != nil {
		return nil, errors.Join(err, s.closeListeners())
	}
	s.receipts = newReceipts(s)
	s.apns, s.fcm, s.twilio, s.mail, s.calls = newAPNs(s), newFCM(s), newTwilio(s), newMail(s), newCallbacks(s)
	s.wire = newWireServer(s, s.apns)
	return s, nil
}

// bind listens on all ports. Then it completes the keys and files that contain the addresses.
func (s *Simulator) bind(sd seed) error {
	addrs := [...]string{s.cfg.APNs.Addr, s.cfg.FCM.Addr, s.cfg.Twilio.Addr, s.cfg.SendGrid.Addr, s.cfg.ControlAddr, s.cfg.Callback.Addr}
	var hosts []string
	for i, addr := range addrs {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
		if err != nil {
			return notify.Unavailable("simulator_port", 0, err)
		}
		s.listeners[i] = l
		if host, _, err := net.SplitHostPort(addr); err == nil && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	var err error
	if s.ca, err = newAuthority(sd, hosts); err != nil {
		return err
	}
	u := s.URLs()
	if err := s.keys.bind(s.ca.pem, s.cfg.FCM.Project, u.FCMToken); err != nil {
		return err
	}
	if s.cfg.Dir != "" {
		if err := s.keys.creds.save(s.cfg.Dir, u); err != nil {
			return err
		}
	}
	if s.cfg.LedgerFile != "" {
		s.ledger.file, err = openLedgerFile(s.cfg.LedgerFile, s.ledger)
	}
	return err
}

// Addrs returns the addresses on which the simulator listens.
func (s *Simulator) Addrs() Addrs {
	a := func(i int) string { return s.listeners[i].Addr().String() }
	return Addrs{a(0), a(1), a(2), a(3), a(4), a(5)}
}

// URLs returns the URLs at which clients reach the providers.
func (s *Simulator) URLs() URLs {
	a := s.Addrs()
	return URLs{
		APNs: "https://" + a.APNs, FCM: "https://" + a.FCM, FCMToken: "https://" + a.FCM + "/token",
		Twilio: "https://" + a.Twilio, SendGrid: "https://" + a.SendGrid,
		Control: "http://" + a.Control, Inbox: "http://" + a.Control + "/inbox", Callback: "http://" + a.Callback,
	}
}

// Credentials returns the credentials that the providers accept.
func (s *Simulator) Credentials() Credentials { return s.keys.creds }

// CAPool returns the CA that signed the certificates of the providers.
func (s *Simulator) CAPool() *x509.CertPool { return s.ca.pool.Clone() }

// CAPEM returns the CA as PEM.
func (s *Simulator) CAPEM() []byte { return slices.Clone(s.ca.pem) }

// Ledger returns the record of everything that the providers received.
func (s *Simulator) Ledger() *Ledger { return s.ledger }

// AddRule adds r before all other rules, and returns it with its number. It returns an error of
// notify.KindInvalid if the rule is wrong.
func (s *Simulator) AddRule(r Rule) (Rule, error) { return s.rules.add(r) }

// RemoveRule removes a rule. It returns false if there is no rule with that number.
func (s *Simulator) RemoveRule(number uint64) bool { return s.rules.remove(number) }

// Rules returns the rules in force, the newest rule first.
func (s *Simulator) Rules() []Rule { return s.rules.all() }

// SetLatency sets the latency of provider p. If p is 0, it sets the latency of all providers. It
// returns an error of notify.KindInvalid if p or l is wrong.
func (s *Simulator) SetLatency(p Provider, l Latency) error {
	if p > allProviders {
		return notify.Invalid("bad_provider", "provider", "is not a known provider")
	}
	if err := l.validate("latency"); err != nil {
		return err
	}
	for i := APNs; i <= allProviders; i++ {
		if p == 0 || p == i {
			s.latency[i].Store(&l)
		}
	}
	return nil
}

func (s *Simulator) resetLatency() {
	for p, l := range map[Provider]Latency{
		APNs: s.cfg.APNs.Latency, FCM: s.cfg.FCM.Latency, Twilio: s.cfg.Twilio.Latency,
		SendGrid: s.cfg.SendGrid.Latency, OAuth: {}, Callback: s.cfg.Callback.Latency,
	} {
		s.latency[p].Store(&l)
	}
}

// Latency returns the latency of a provider.
func (s *Simulator) Latency(p Provider) Latency {
	if p < 1 || p > allProviders {
		return Latency{}
	}
	return *s.latency[p].Load()
}

// SetReceipts changes the receipts of messages that come after the call. It returns an error of
// notify.KindInvalid if r is wrong.
func (s *Simulator) SetReceipts(r Receipts) error {
	r.Batch = intOr(r.Batch, 500)
	if err := r.validate(); err != nil {
		return err
	}
	s.receipts.cfg.Store(&r)
	return nil
}

// Receipts returns the settings of the receipts.
func (s *Simulator) Receipts() Receipts { return *s.receipts.cfg.Load() }

// OptOut makes Twilio refuse messages to a number with the error code 21610, as after a STOP.
func (s *Simulator) OptOut(phone string) { s.optedOut.Store(phone, struct{}{}) }

// OptIn ends the effect of OptOut, as after a START.
func (s *Simulator) OptIn(phone string) { s.optedOut.Delete(phone) }

// Reset removes all rules and opt-outs. It sets the latencies, the settings of the receipts and the
// Wire of APNs back to their configured values. It keeps the ledger and the inbox.
func (s *Simulator) Reset() {
	s.rules.clear()
	s.resetLatency()
	s.wire.set(Wire{}.withDefaults(s.cfg.APNs.Streams))
	s.optedOut.Clear()
	r := s.cfg.Receipts
	s.receipts.cfg.Store(&r)
}

// Inbox returns the last messages, the newest message first.
func (s *Simulator) Inbox() []Message { return s.inbox.messages() }

// flushEvery is the longest time that a line waits before it is written to the ledger file.
const flushEvery = 100 * time.Millisecond

// Run serves until ctx ends. Then it closes open connections, flushes the ledger file and frees the
// ports. It returns nil if it ended because ctx ended. It may be called once.
func (s *Simulator) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.ran {
		s.mu.Unlock()
		return errors.New("simulator: Run must not be called after Run or Close")
	}
	s.ran = true
	s.mu.Unlock()

	servers := s.servers()
	g, ctx := errgroup.WithContext(ctx)
	for i, srv := range servers {
		g.Go(func() error {
			err := s.serve(srv, s.listeners[i])
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return err
		})
	}
	g.Go(func() error { return s.receipts.run(ctx) })
	g.Go(func() error { return s.flushLoop(ctx) })
	g.Go(func() error {
		<-ctx.Done()
		close(s.stopping)
		var err error
		for _, srv := range servers {
			err = errors.Join(err, stopServer(srv))
		}
		return err
	})
	err := g.Wait()
	s.wire.served.Wait() // http.Server does not wait for the connections that it closes
	return errors.Join(err, s.ledger.close())
}

// stopServer waits up to 200 ms for answers that are being sent. Then it closes all connections.
func stopServer(srv *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if srv.Shutdown(ctx) == nil {
		return nil
	}
	return srv.Close()
}

// Close frees the ports of a simulator whose Run was never called. After Run it does nothing.
func (s *Simulator) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ran {
		return nil
	}
	s.ran = true
	return errors.Join(s.closeListeners(), s.ledger.close())
}

func (s *Simulator) closeListeners() error {
	var err error
	for _, l := range s.listeners {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return err
}

func (s *Simulator) flushLoop(ctx context.Context) error {
	if s.ledger.file == nil {
		return nil
	}
	t := time.NewTicker(flushEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := s.ledger.file.flush(); err != nil {
			return err // the ledger file stays incomplete from now on, so end the run
		}
	}
}

// servers returns one server for each listener.
func (s *Simulator) servers() []*http.Server {
	proto := func(h1, h2 bool) *http.Protocols {
		p := new(http.Protocols)
		p.SetHTTP1(h1)
		p.SetHTTP2(h2)
		return p
	}
	apns := s.wire.server()
	apns.Protocols = proto(false, true)
	out := []*http.Server{
		apns,
		{Handler: s.fcm.routes(), Protocols: proto(true, true), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: s.cfg.FCM.Streams}},
		{Handler: s.twilio.routes(), Protocols: proto(true, true)},
		{Handler: s.mail.routes(), Protocols: proto(true, true)},
		{Handler: controlHandler(s), Protocols: proto(true, false)},
		{Handler: s.calls, Protocols: proto(true, false)},
	}
	for i, srv := range out {
		srv.ErrorLog = slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
		srv.ReadHeaderTimeout = 10 * time.Second
		srv.MaxHeaderBytes = 16 << 10
		srv.ConnContext = withConn
		if i < receiverProviders {
			srv.TLSConfig = s.ca.serverConfig()
		}
	}
	return out
}

func (s *Simulator) serve(srv *http.Server, l net.Listener) error {
	if srv.TLSConfig != nil {
		return srv.ServeTLS(l, "", "")
	}
	return srv.Serve(l)
}

// clientConn holds data that all requests of one connection share.
type clientConn struct {
	net.Conn
	apns apnsConn
	wire *wireConn // nil except for APNs
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, &clientConn{Conn: c})
}

func connOf(ctx context.Context) *clientConn {
	c, _ := ctx.Value(connKey{}).(*clientConn)
	return c
}

// reset closes the connection with a RST instead of a normal close.
func (c *clientConn) reset() {
	nc := c.Conn
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	if t, ok := nc.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // without this the close below would be a normal close
	}
	_ = nc.Close()
}

// SetAPNsWire changes how the APNs server behaves at the level of HTTP/2 frames. It returns an
// error of notify.KindInvalid if one of the values is out of range.
func (s *Simulator) SetAPNsWire(w Wire) error {
	if err := w.validate(); err != nil {
		return err
	}
	s.wire.set(w.withDefaults(s.cfg.APNs.Streams))
	return nil
}

// APNsWire returns the Wire in force and the counters of the APNs server.
func (s *Simulator) APNsWire() (Wire, WireStats) { return s.wire.state() }

// ReceiptStats returns the counters of the receipts.
func (s *Simulator) ReceiptStats() ReceiptStats {
	r := s.receipts
	r.mu.Lock()
	defer r.mu.Unlock()
	return ReceiptStats{Pending: len(r.due), Sent: r.sent.Load(), Refused: r.refused.Load(), Overflow: r.overflow.Load()}
}
