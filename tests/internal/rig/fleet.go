package rig

import (
	"bytes"
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
	"time"

	"github.com/notifyd/notifyd/internal/freeport"
)

// FleetConfig of a Fleet.
type FleetConfig struct {
	Bin string // notifyd; see Build
	Dir string // for logs, and the simulators' ledger
	// Engines is the configuration of the servers, as YAML.
	Engines string
	// First are the roles of the first process, which is notifyd dev and takes
	// requests: api or all.
	First string
	// Env is further environment, KEY=value, of the first process and of migrate.
	Env []string
	// Simulate are further arguments of the simulators, as Config has them.
	Simulate []string
}

// Fleet is the processes. The first one is V.
type Fleet struct {
	V     *Victim
	cfg   FleetConfig
	procs []*Process
}

// Process is one besides the first.
type Process struct {
	Name, Role string
	Log        string // a file
	API, Admin string // host:port

	*Child

	f    *Fleet
	env  []string
	set  []string
	with Starter
}

// Starter starts a command in another way than its Start. Metrics of a process in a
// network of its own cannot be asked.
type Starter func(*exec.Cmd) error

// NewFleet migrates the servers, and starts the simulators and the first process. End
// must be called, also after an error.
func NewFleet(ctx context.Context, cfg FleetConfig) (*Fleet, error) {
	f := &Fleet{cfg: cfg}
	if err := os.WriteFile(f.Engines(), []byte(cfg.Engines), 0o600); err != nil {
		return f, err
	}
	if err := f.Migrate(ctx); err != nil {
		return f, err
	}
	var err error
	f.V, err = New(ctx, Config{
		Bin: cfg.Bin, Dir: cfg.Dir, Env: cfg.Env, Simulate: cfg.Simulate,
		Args: []string{"--config", f.Engines(), "--set", "roles=" + cfg.First, "--set", "logging.level=info", "--set", "instance=" + FirstName},
	})
	if err != nil {
		return f, err
	}
	return f, f.V.Start(ctx, "")
}

// Migrate runs migrate up. A machine with other work makes Cassandra slow: it goes on
// where it was cut short.
func (f *Fleet) Migrate(ctx context.Context) error {
	out, err := f.Command(ctx, f.cfg.Env, "migrate", "up", "--config", f.Engines())
	for try := 1; err != nil && try < 5 && strings.Contains(out, "retry: after"); try++ {
		out, err = f.Command(ctx, f.cfg.Env, "migrate", "up", "--config", f.Engines())
	}
	if err != nil {
		return fmt.Errorf("migrate up: %w\n%s", err, out)
	}
	return nil
}

// FirstName is the instance of the first process.
const FirstName = "fleet-first"

// Engines is the file of the servers' configuration.
func (f *Fleet) Engines() string { return filepath.Join(f.cfg.Dir, "engines.yaml") }

// Beside is the file with what the first process shares with the others.
func (f *Fleet) Beside() string { return filepath.Join(f.cfg.Dir, "dev", "beside.yaml") }

// Command runs notifyd to its end and returns all that it said.
func (f *Fleet) Command(ctx context.Context, env []string, args ...string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, Patience)
	defer stop()
	c := DieWithStarter(exec.CommandContext(ctx, f.cfg.Bin, args...))
	c.Env = append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// Run starts a process of some roles and waits until it is ready. set are values of
// its configuration, key=value, env its further environment.
func (f *Fleet) Run(ctx context.Context, name, role string, env []string, set ...string) (*Process, error) {
	return f.RunBy(ctx, (*exec.Cmd).Start, name, role, env, set...)
}

// RunBy is Run with a process that is started by with.
func (f *Fleet) RunBy(ctx context.Context, with Starter, name, role string, env []string, set ...string) (*Process, error) {
	p := &Process{Name: name, Role: role, Log: filepath.Join(f.cfg.Dir, name+".log"), f: f, env: env, set: set, with: with}
	f.procs = append(f.procs, p)
	port, err := freeport.Find(1)
	if err != nil {
		return p, err
	}
	p.API = fmt.Sprint("127.0.0.1:", port)
	err = p.start(ctx)
	return p, err
}

func (p *Process) start(ctx context.Context) (err error) {
	defer Catch(&err)
	out := Must(os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))
	defer out.Close()
	before := Must(out.Stat())
	args := []string{"serve", "--config", p.f.Engines(), "--config", p.f.Beside(), "--role", p.Role}
	for _, kv := range append([]string{
		"api.listen=" + p.API, "api.admin=127.0.0.1:0", "logging.level=info", "logging.format=json",
		"data_dir=" + filepath.Join(p.f.cfg.Dir, "none"), "instance=" + p.Name,
	}, p.set...) {
		args = append(args, "--set", kv)
	}
	c := DieWithStarter(exec.CommandContext(ctx, p.f.cfg.Bin, args...))
	c.Env = append(os.Environ(), p.env...)
	c.Stdout, c.Stderr = out, out
	p.Child = Must(spawn(c, func() error { return p.with(c) }))
	return Until(ctx, p.Name+" is ready", func() (bool, error) {
		Ok(p.Ended())
		b := Must(os.ReadFile(p.Log))
		for line := range bytes.Lines(b[before.Size():]) {
			var said struct{ Msg, API, Admin string }
			if json.Unmarshal(line, &said) == nil && said.Msg == "ready" {
				p.API, p.Admin = said.API, said.Admin // the same API in its next life
				return true, nil
			}
		}
		return false, nil
	})
}

// Ended is an error when the process has.
func (p *Process) Ended() error {
	if p.Gone() {
		return fmt.Errorf("%s ended by itself: %v (see %s)", p.Name, p.err, p.Log) //nolint:errorlint // nil when it exited with 0
	}
	return nil
}

// Stop is SIGTERM, and returns when the process has ended; an error when that was
// not with 0.
func (p *Process) Stop() error {
	if err := p.Ended(); err != nil {
		return err
	}
	if err := p.Child.Stop(); err != nil {
		return fmt.Errorf("%s: %w (see %s)", p.Name, err, p.Log)
	}
	return nil
}

// Remove kills a process that is not needed any more.
func (f *Fleet) Remove(p *Process) {
	if p.Child != nil {
		_ = p.Kill()
	}
	f.procs = slices.DeleteFunc(f.procs, func(one *Process) bool { return one == p })
}

// Restart is Stop, and a next life with the same address.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Stop(); err != nil {
		return err
	}
	return p.start(ctx)
}

// Metrics of a process, see Scrape.
func (p *Process) Metrics(ctx context.Context) (map[string]float64, error) {
	return Scrape(ctx, "http://"+p.Admin+"/metrics")
}

// Scrape reads the metrics at a URL, without those that have labels. It takes 10
// seconds at most.
func Scrape(ctx context.Context, url string) (map[string]float64, error) {
	b, err := fetch(ctx, &http.Client{Timeout: 10 * time.Second}, http.MethodGet, url, "")
	out := map[string]float64{}
	for line := range strings.Lines(string(b)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if x, err := strconv.ParseFloat(value, 64); ok && err == nil {
			out[name] = x
		}
	}
	return out, err
}

// ScrapeSum adds up the samples of a metric whose labels hold a text.
func ScrapeSum(ctx context.Context, url, name, labels string) (sum float64, err error) {
	b, err := fetch(ctx, &http.Client{Timeout: 10 * time.Second}, http.MethodGet, url, "")
	for line := range strings.Lines(string(b)) {
		sample, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if x, err := strconv.ParseFloat(value, 64); ok && err == nil && strings.HasPrefix(sample, name+"{") && strings.Contains(sample, labels) {
			sum += x
		}
	}
	return sum, err
}

// Processes are those besides the first.
func (f *Fleet) Processes() []*Process { return slices.Clone(f.procs) }

// Logs returns all that every process said.
func (f *Fleet) Logs() (text string, err error) {
	defer Catch(&err)
	all := Must(filepath.Glob(filepath.Join(f.cfg.Dir, "*.log")))
	var out strings.Builder
	for _, name := range all {
		b := Must(os.ReadFile(name))
		out.Write(b)
	}
	return out.String(), nil
}

// Stop ends every process as an operator does, the first one last, and says which
// did not end with 0.
func (f *Fleet) Stop() error {
	var errs []error
	for _, p := range f.procs {
		if !p.Gone() {
			errs = append(errs, p.Stop())
		}
	}
	if err := f.V.Stop(); err != nil {
		errs = append(errs, fmt.Errorf("the first process: %w", err))
	}
	return errors.Join(errs...)
}

// End kills what is left.
func (f *Fleet) End() {
	for _, p := range f.procs {
		if p.Child != nil {
			_ = p.Kill()
		}
	}
	if f.V != nil {
		f.V.End()
	}
}
