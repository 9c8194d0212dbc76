package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/internal/freeport"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/notify"
)

// server is a Redis of one test, which may do to it what it likes.
type server struct {
	t    testing.TB
	dir  string
	port int
	args []string
	cmd  *exec.Cmd
}

// startServer starts one that fsyncs always unless args say otherwise.
func startServer(t testing.TB, args ...string) *server {
	t.Helper()
	if enginetest.Server(t, enginetest.RedisEnv) == "" {
		return nil
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("NOTIFY_REQUIRE_ENGINES") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	s := &server{t: t, dir: t.TempDir(), port: freePort(t)}
	s.args = append([]string{"--save", "", "--appendonly", "yes", "--appendfsync", "always"}, args...)
	s.start()
	t.Cleanup(func() { s.kill() })
	return s
}

// freePort returns a port that no process uses now.
func freePort(t testing.TB) int {
	t.Helper()
	port, err := freeport.Find(1)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func (s *server) addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

func (s *server) start() { s.startWith() }

// startWith starts it with a file of settings before its arguments.
func (s *server) startWith(conf ...string) {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd = exec.Command("redis-server", append(append(conf, "--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.dir), s.args...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	// Even if the test process is killed.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	_ = log.Close()
	if slices.Contains(s.args, "--tls-port") {
		return // it answers at another port, and not in plain text
	}
	s.await(func() bool {
		c, err := net.Dial("tcp", s.addr())
		if err != nil {
			return false
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = c.Write([]byte("PING\r\n"))
		b := make([]byte, 5)
		_, err = io.ReadFull(c, b)
		return err == nil && string(b) != "-LOAD"
	})
}

// await waits until a condition holds; minutes, for the machine may be slow.
func (s *server) await(ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			s.t.Fatalf("the server did not get there:\n%s", log)
		}
	}
}

// kill ends the server at once. It loses its memory and all writes that it had not fsynced.
func (s *server) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

func (s *server) restart() {
	s.t.Helper()
	s.kill()
	s.start()
}

func (s *server) freeze() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }
func (s *server) thaw()   { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

func (s *server) client() *client.Client {
	c := client.NewClient(&client.Options{Addr: s.addr(), DisableIdentity: true})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *server) empty() {
	s.t.Helper()
	if err := s.client().FlushAll(context.Background()).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// connect has the timeouts of the product, or others.
func (s *server) connect(change ...func(*Config)) *Store {
	s.t.Helper()
	cfg := Config{Addresses: []string{s.addr()}, Timeout: 5 * time.Second}
	for _, fn := range change {
		fn(&cfg)
	}
	return mustConnect(s.t, cfg)
}

// proxy forwards connections, with a delay that the test sets.
type proxy struct {
	l  net.Listener
	to string

	mu    sync.Mutex
	delay time.Duration // of every answer
	loses bool          // the next one
	conns []net.Conn
	wg    sync.WaitGroup
}

func startProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, to: to}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.drop()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// lose makes the proxy drop the next answer.
func (p *proxy) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loses = true
}

// left reports whether the proxy has not dropped an answer yet.
func (p *proxy) left() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loses
}

// drop ends all connections there are.
func (p *proxy) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *proxy) accept() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		p.wg.Go(func() { p.pass(out, in, false) })
		p.wg.Go(func() { p.pass(in, out, true) })
	}
}

func (p *proxy) pass(to, from net.Conn, answers bool) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if answers {
			p.mu.Lock()
			d, lose := p.delay, p.loses
			p.loses = false
			p.mu.Unlock()
			time.Sleep(d)
			if lose {
				continue
			}
		}
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

func wantUnavailable(t testing.TB, what string, err error) {
	t.Helper()
	if notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("%s: %v (%v), want it unavailable", what, err, notify.KindOf(err))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e.Code
	}
	return fmt.Sprint(err)
}
