package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/internal/freeport"
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/term"
)

// process runs notifyd and the simulators in processes of their own. The
// simulators are never touched: their ledger is the proof.
func (e *Environment) process(ctx context.Context, s *load.Scenario, opt *Options) error {
	bin, err := findNotifyd(opt.Notifyd)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "notifyctl-load-")
	if err != nil {
		return err
	}
	e.closes = append(e.closes, func() error { return os.RemoveAll(dir) })
	port, err := freeport.Find(5)
	if err != nil {
		return err
	}
	o := &owned{bin: bin, dir: dir, url: "http://127.0.0.1:" + strconv.Itoa(port), port: port, set: s.Server.Set}
	e.closes = append(e.closes, o.end)
	opt.Note("starting notifyd and simulated providers")
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
	e.Config.ServerName, e.Config.Process = cl.BaseURL+" (a process of its own)", o
	e.died, e.brokers = o.died, []string{load.Socket + filepath.Join(dir, "dev", "data", app.SocketName)}
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
		return "", term.Usage("mode process needs notifyd beside notifyctl, on the PATH, or --notifyd FILE")
	}
	return bin, nil
}

// owned is a notifyd that the run may kill.
type owned struct {
	bin, dir, url string
	port          int
	set           map[string]any
	ready         func(context.Context) error

	mu     sync.Mutex
	sims   *child
	proc   *child
	ending bool // by a fault: that it ends is no surprise
}

// child is a process whose output goes to a file.
type child struct {
	*exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
	err  error         // then: what Wait said
}

// why says that a child ended, and the last line it wrote.
func (c *child) why() error {
	b, _ := os.ReadFile(c.log) // without it there is less to say
	text := strings.TrimSpace(string(b))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if text != "" {
		text = ": " + term.Clean(text)
	}
	return fmt.Errorf("%s ended: %w%s", strings.TrimSuffix(filepath.Base(c.log), ".log"), cmpErr(c.err), text)
}

// kill ends it at once, also when it is stopped.
func (c *child) kill() {
	if c == nil {
		return
	}
	_ = c.Process.Kill() // one that has ended is what is wanted
	<-c.done
}

func (o *owned) child(name string, args ...string) (*child, error) {
	c := &child{Cmd: exec.Command(o.bin, args...), log: filepath.Join(o.dir, name+".log"), done: make(chan struct{})} //nolint:gosec,noctx // the user's own program; end kills it
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	c.Stdout, c.Stderr = log, log
	// Settings of a notifyd in this environment are not for the child: they may name a cluster.
	c.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, app.EnvPrefix) })
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the run, which ends it
	if err := c.Start(); err != nil {
		return nil, err
	}
	go func() { c.err = c.Wait(); close(c.done) }()
	return c, nil
}

func (o *owned) simulate(ctx context.Context, latency time.Duration) (control string, err error) {
	dir := filepath.Join(o.dir, "simulator")
	if o.sims, err = o.child("simulate", "simulate", "--dir", dir, "--latency", latency.String(), "--sendgrid-webhook", o.url+"/v1/receipts/sendgrid"); err != nil {
		return "", err
	}
	var s struct {
		URLs struct{ Control string } `json:"urls"`
	}
	err = o.sims.await(ctx, func() error {
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
	args = append(args, "--set", "engines=embedded")
	c, err := o.child("notifyd", args...)
	if err != nil {
		return err
	}
	o.mu.Lock()
	o.proc, o.ending = c, false
	o.mu.Unlock()
	return c.await(ctx, func() error { return o.ready(ctx) })
}

// await tries until f succeeds, for five minutes at most: a start on a busy disk
// may take one. A child that has ended will not.
func (c *child) await(ctx context.Context, f func() error) error {
	for began := time.Now(); ; {
		err := f()
		if err == nil || time.Since(began) > 5*time.Minute {
			return err
		}
		select {
		case <-c.done:
			return c.why()
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// died says that notifyd ended though no fault ended it; nil: it did not.
func (o *owned) died() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.proc == nil || o.ending {
		return nil
	}
	select {
	case <-o.proc.done:
		return o.proc.why()
	default:
		return nil
	}
}

// Fault implements load.ProcessControl. A notifyd that is asked to stop and has not
// by the end of the fault is killed, and a stop that ends with an error is one of the
// fault.
func (o *owned) Fault(_ context.Context, f *load.FaultSpec) (func(context.Context) error, error) {
	o.mu.Lock()
	proc := o.proc
	o.ending = o.ending || f.Process != "pause"
	o.mu.Unlock()
	sig := syscall.SIGKILL
	switch f.Process {
	case "pause":
		cont := func(context.Context) error { return proc.Process.Signal(syscall.SIGCONT) }
		return cont, proc.Process.Signal(syscall.SIGSTOP)
	case "stop":
		sig = syscall.SIGTERM
	}
	if err := proc.Process.Signal(sig); err != nil {
		select {
		case <-proc.done: // it had ended by itself
			return nil, proc.why()
		default:
			return nil, err
		}
	}
	return func(ctx context.Context) error {
		var stopped error
		if sig == syscall.SIGKILL {
			<-proc.done
		} else {
			stopped = proc.stopped()
		}
		return errors.Join(stopped, o.start(ctx))
	}, nil
}

// stopped kills what was asked to stop and has not, and says whether it ended well.
func (c *child) stopped() error {
	select {
	case <-c.done:
		if c.err != nil {
			return c.why()
		}
		return nil
	default:
	}
	c.kill()
	return errors.New("it had not stopped by the end of the fault, and was killed")
}

// end stops what it started.
func (o *owned) end() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.proc.kill() // its folder goes away
	o.sims.kill()
	return nil
}
