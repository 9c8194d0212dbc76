package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cli"
	"github.com/notifyd/notifyd/pkg/load"
)

// process runs notifyd and the simulators in processes of their own. The
// simulators are never touched: their ledger is the proof.
func (e *loadEnvironment) process(ctx context.Context, p *program, s *load.Scenario, bin string) error {
	bin, err := findNotifyd(bin)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "notifyctl-load-")
	if err != nil {
		return err
	}
	e.closes = append(e.closes, func() error { return os.RemoveAll(dir) })
	port, err := portBlock(ctx)
	if err != nil {
		return err
	}
	o := &owned{bin: bin, dir: dir, url: "http://127.0.0.1:" + strconv.Itoa(port), port: port, note: p.note, set: s.Server.Set}
	e.closes = append(e.closes, o.end)
	p.note("starting notifyd and simulated providers")
	control, err := o.simulate(ctx, s.Server.ProviderLatency())
	if err != nil {
		return err
	}
	cl := &api.Client{BaseURL: o.url, Token: func(context.Context) (string, error) {
		b, err := os.ReadFile(filepath.Join(dir, "dev", "token"))
		return strings.TrimSpace(string(b)), err
	}}
	o.ready = cl.Ready
	if err := o.start(ctx); err != nil {
		return err
	}
	e.client(cl, s)
	e.config.ServerName, e.config.Process = cl.BaseURL+" (a process of its own)", o
	return e.simulators(control)
}

// findNotifyd looks beside notifyctl, and then on the PATH.
func findNotifyd(bin string) (string, error) {
	if bin != "" {
		return bin, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "notifyd")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	bin, err := exec.LookPath("notifyd")
	if err != nil {
		return "", cli.Usage("mode process needs notifyd beside notifyctl, on the PATH, or --notifyd FILE")
	}
	return bin, nil
}

// portBlock finds a free port of loopback with four free ones behind it.
func portBlock(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	for range 100 {
		l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return 0, err
		}
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close() // it is to be free
		free := port+4 < 65536
		for i := 1; free && i <= 4; i++ {
			l, err := lc.Listen(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(port+i))
			if free = err == nil; free {
				_ = l.Close()
			}
		}
		if free {
			return port, nil
		}
	}
	return 0, errors.New("no five free ports in a row")
}

// owned is a notifyd that the run may kill.
type owned struct {
	bin, dir, url string
	port          int
	set           map[string]any
	note          func(string, ...any)
	ready         func(context.Context) error

	mu     sync.Mutex
	sims   *exec.Cmd
	proc   *exec.Cmd
	exited chan error
}

// command makes a process whose output goes to a file.
func (o *owned) command(name string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(o.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()                 // the child has its own
	c := exec.Command(o.bin, args...) //nolint:gosec,noctx // the user's own program; end kills it
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the run, which ends it
	err = c.Start()
	return c, err
}

func (o *owned) simulate(ctx context.Context, latency time.Duration) (control string, err error) {
	dir := filepath.Join(o.dir, "simulator")
	if o.sims, err = o.command("simulate", "simulate", "--dir", dir, "--latency", latency.String(), "--sendgrid-webhook", o.url+"/v1/receipts/sendgrid"); err != nil {
		return "", err
	}
	var s struct {
		URLs struct{ Control string } `json:"urls"`
	}
	err = await(ctx, func() error {
		b, err := os.ReadFile(filepath.Join(dir, "simulator.json"))
		if err == nil {
			err = json.Unmarshal(b, &s)
		}
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URLs.Control+"/healthz", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	})
	return s.URLs.Control, err
}

// start starts notifyd and waits until it is ready.
func (o *owned) start(ctx context.Context) error {
	args := []string{"dev", "--data-dir", filepath.Join(o.dir, "dev"), "--port", strconv.Itoa(o.port),
		"--simulator-dir", filepath.Join(o.dir, "simulator"), "--context", "", "--seed", "none", "--ready-timeout", "0"}
	for k, v := range o.set {
		args = append(args, "--set", fmt.Sprintf("%s=%v", k, v))
	}
	c, err := o.command("notifyd", args...)
	if err != nil {
		return err
	}
	o.mu.Lock()
	o.proc, o.exited = c, make(chan error, 1)
	exited := o.exited
	o.mu.Unlock()
	go func() { exited <- c.Wait() }()
	return await(ctx, func() error {
		select {
		case err := <-exited:
			exited <- err
			return &stop{fmt.Errorf("notifyd ended: %w", cmpErr(err))}
		default:
		}
		return o.ready(ctx)
	})
}

// stop is an error that waiting does not mend.
type stop struct{ error }

// await tries until f succeeds, for five minutes at most: a start on a busy disk
// may take one.
func await(ctx context.Context, f func() error) error {
	for began := time.Now(); ; {
		err := f()
		if err == nil {
			return nil
		}
		if _, ok := errors.AsType[*stop](err); ok || time.Since(began) > 5*time.Minute {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Fault implements load.ProcessControl.
func (o *owned) Fault(ctx context.Context, f *load.FaultSpec) (func(context.Context) error, error) {
	o.mu.Lock()
	proc, exited := o.proc, o.exited
	o.mu.Unlock()
	again := func(ctx context.Context) error { return o.start(ctx) }
	switch f.Process {
	case "pause":
		return func(context.Context) error { return proc.Process.Signal(syscall.SIGCONT) }, proc.Process.Signal(syscall.SIGSTOP)
	case "stop":
		if err := proc.Process.Signal(syscall.SIGTERM); err != nil {
			return nil, err
		}
	default:
		if err := proc.Process.Kill(); err != nil {
			return nil, err
		}
	}
	select {
	case err := <-exited:
		exited <- err
		return again, nil
	case <-ctx.Done():
		return again, nil // heal all the same
	}
}

// end stops what it started.
func (o *owned) end() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.proc != nil {
		_ = o.proc.Process.Signal(syscall.SIGCONT)
		_ = o.proc.Process.Kill() // its folder goes away
		<-o.exited                //nolint:errcheck // it was killed
	}
	if o.sims != nil {
		_ = o.sims.Process.Kill()
		_ = o.sims.Wait()
	}
	return nil
}
