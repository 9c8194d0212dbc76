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

// startProcesses starts a process for notifyd and another process for the simulators. Faults act
// only on notifyd: the simulators must stay alive, because their ledger proves what was delivered.
func (e *Environment) startProcesses(ctx context.Context, s *load.Scenario, opt *Options) error {
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
	e.closes = append(e.closes, o.killAll)
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
	return e.addSimulators(control)
}

// findNotifyd returns bin if it is not empty. Otherwise it looks in the folder of notifyctl, and
// then on the PATH.
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
		return "", term.Usage("the mode process needs the program notifyd: put it beside notifyctl or on the PATH, or name it with --notifyd FILE")
	}
	return bin, nil
}

// owned is a notifyd process that the run started and may kill, and the process of its simulators.
// The mutex mu guards the fields below it.
type owned struct {
	bin, dir, url string
	port          int
	set           map[string]any
	ready         func(context.Context) error

	mu     sync.Mutex
	sims   *child
	proc   *child
	ending bool // true: a fault ends the process proc, so its end is not an error
}

// child is a process that this process started. Its output goes to the file that the field log
// names.
type child struct {
	*exec.Cmd
	log  string
	done chan struct{} // closed when the process has ended
	err  error         // the result of Wait; read it only after done is closed
}

// exitError returns an error that says how the child ended. The error contains the last line that
// the child wrote.
func (c *child) exitError() error {
	b, _ := os.ReadFile(c.log) // if there is no log, the error is only shorter
	text := strings.TrimSpace(string(b))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if text != "" {
		text = ": " + term.Clean(text)
	}
	return fmt.Errorf("%s ended: %w%s", strings.TrimSuffix(filepath.Base(c.log), ".log"), cmpErr(c.err), text)
}

// kill kills the process, even if it is paused, and waits until the process has ended.
func (c *child) kill() {
	if c == nil {
		return
	}
	_ = c.Process.Kill() // fails only if the process has already ended
	<-c.done
}

func (o *owned) child(name string, args ...string) (*child, error) {
	c := &child{Cmd: exec.Command(o.bin, args...), log: filepath.Join(o.dir, name+".log"), done: make(chan struct{})} //nolint:gosec,noctx // the user's own program; killAll kills it
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has a copy of the file
	c.Stdout, c.Stderr = log, log
	// The child must not get settings from this environment: they may name a cluster.
	c.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, app.EnvPrefix) })
	// Give the child another process group, so that Ctrl-C does not reach the child. notifyctl gets
	// Ctrl-C and then ends the child.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
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

// await repeats f until f succeeds, at most for five minutes, because a start may take a minute on
// a busy disk. If the child ends, await returns an error at once.
func (c *child) await(ctx context.Context, f func() error) error {
	for began := time.Now(); ; {
		err := f()
		if err == nil || time.Since(began) > 5*time.Minute {
			return err
		}
		select {
		case <-c.done:
			return c.exitError()
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// died returns an error if notifyd has ended by itself, not by a fault.
func (o *owned) died() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.proc == nil || o.ending {
		return nil
	}
	select {
	case <-o.proc.done:
		return o.proc.exitError()
	default:
		return nil
	}
}

// Fault implements load.ProcessControl. The returned function ends the fault: it starts notifyd
// again, or lets a paused notifyd continue. After a fault "stop" the function first checks that
// notifyd has stopped. If notifyd still runs, the function kills it and returns an error. If
// notifyd ended with an error, the function returns this error. It starts notifyd again even then.
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
		case <-proc.done: // the process had ended before the signal
			return nil, proc.exitError()
		default:
			return nil, err
		}
	}
	return func(ctx context.Context) error {
		var stopped error
		if sig == syscall.SIGKILL {
			<-proc.done
		} else {
			stopped = proc.checkStopped()
		}
		return errors.Join(stopped, o.start(ctx))
	}, nil
}

// checkStopped returns nil if the child has ended without an error. If the child has not ended,
// checkStopped kills it and returns an error.
func (c *child) checkStopped() error {
	select {
	case <-c.done:
		if c.err != nil {
			return c.exitError()
		}
		return nil
	default:
	}
	c.kill()
	return errors.New("notifyd had not stopped by the end of the fault, so it was killed")
}

// killAll kills notifyd and the simulators.
func (o *owned) killAll() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.proc.kill() // a clean stop is not needed, because its folder is removed
	o.sims.kill()
	return nil
}
