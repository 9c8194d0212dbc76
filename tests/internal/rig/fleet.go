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

// FleetConfig configures a Fleet.
type FleetConfig struct {
	Bin string // path of notifyd; see Build
	Dir string // folder for logs and the simulators' ledger
	// Engines is the configuration of the servers in YAML; see Servers.YAML.
	Engines string
	// First has the roles of the first process: "api" or "all". That process runs "notifyd dev" and
	// serves the API.
	First string
	// Env has further environment variables, KEY=value, for the first process and for the command
	// "notifyd migrate".
	Env []string
	// Simulate has further arguments of the simulators; see Config.
	Simulate []string
}

// Fleet is an installation: several notifyd processes on real servers, and the simulators. V is the
// first process.
type Fleet struct {
	V     *Victim
	cfg   FleetConfig
	procs []*Process
}

// Process is a process of a Fleet other than the first.
type Process struct {
	Name, Role string
	Log        string // path of the log file
	API, Admin string // host:port

	*Child

	f    *Fleet
	env  []string // further environment variables, KEY=value
	set  []string // settings, key=value
	with Starter
}

// Starter is a function that starts a command, for example exec.Cmd.Start. Another Starter may
// start the command in its own network namespace; then Process.Metrics cannot read the metrics of
// the process.
type Starter func(*exec.Cmd) error

// NewFleet creates the topics and tables on the servers (see Migrate), and starts the simulators and
// the first process. The caller must call End, also after an error.
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

// Migrate runs the command "notifyd migrate up". On a busy machine Cassandra is slow, and the
// command may fail and ask for a retry in its output. Then Migrate repeats it, up to four times.
// Each repeat continues where the previous command stopped.
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

// FirstName is the instance name of the first process.
const FirstName = "fleet-first"

// Engines returns the path of the file with the servers' configuration.
func (f *Fleet) Engines() string { return filepath.Join(f.cfg.Dir, "engines.yaml") }

// Beside returns the path of the configuration file for the other processes. The first process
// writes the file.
func (f *Fleet) Beside() string { return filepath.Join(f.cfg.Dir, "dev", "beside.yaml") }

// Command runs notifyd until it ends, for Patience at most, and returns its output.
func (f *Fleet) Command(ctx context.Context, env []string, args ...string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, Patience)
	defer stop()
	c := DieWithStarter(exec.CommandContext(ctx, f.cfg.Bin, args...))
	c.Env = append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// Run starts a process with the given roles and waits until it is ready. Each of the settings is an
// entry key=value for the configuration. The parameter env has further environment variables,
// KEY=value.
func (f *Fleet) Run(ctx context.Context, name, role string, env []string, settings ...string) (*Process, error) {
	return f.RunBy(ctx, (*exec.Cmd).Start, name, role, env, settings...)
}

// RunBy does the same as Run, but starts the process with the function start.
func (f *Fleet) RunBy(ctx context.Context, start Starter, name, role string, env []string, settings ...string) (*Process, error) {
	p := &Process{Name: name, Role: role, Log: filepath.Join(f.cfg.Dir, name+".log"), f: f, env: env, set: settings, with: start}
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
				p.API, p.Admin = said.API, said.Admin // a restart uses the same API address
				return true, nil
			}
		}
		return false, nil
	})
}

// Ended returns an error if the process has ended.
func (p *Process) Ended() error {
	if p.Gone() {
		return fmt.Errorf("%s ended by itself: %v (see %s)", p.Name, p.err, p.Log) //nolint:errorlint // nil when it exited with 0
	}
	return nil
}

// Stop sends SIGTERM and waits until the process has ended. It returns an error if the process had
// ended before, if its exit code is not 0, or if it does not end within Patience.
func (p *Process) Stop() error {
	if err := p.Ended(); err != nil {
		return err
	}
	if err := p.Child.Stop(); err != nil {
		return fmt.Errorf("%s: %w (see %s)", p.Name, err, p.Log)
	}
	return nil
}

// Remove kills a process and removes it from the fleet.
func (f *Fleet) Remove(p *Process) {
	if p.Child != nil {
		_ = p.Kill()
	}
	f.procs = slices.DeleteFunc(f.procs, func(one *Process) bool { return one == p })
}

// Restart stops the process and starts it again with the same address.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Stop(); err != nil {
		return err
	}
	return p.start(ctx)
}

// Metrics returns the metrics of the process; see Scrape.
func (p *Process) Metrics(ctx context.Context) (map[string]float64, error) {
	return Scrape(ctx, "http://"+p.Admin+"/metrics")
}

// Scrape reads the metrics at a URL and returns the value of each sample. The key is the name with
// its labels, as in the text of the metrics. Scrape ignores samples whose labels contain a space.
// It returns an error if the request takes longer than 10 seconds.
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

// ScrapeSum reads the metrics at a URL. It returns the sum of the samples whose metric has the
// given name and whose labels contain the text in the parameter labels.
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

// Processes returns all processes of the fleet except the first process.
func (f *Fleet) Processes() []*Process { return slices.Clone(f.procs) }

// Logs returns the text of all log files, one after the other.
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

// Stop stops every process with SIGTERM. It stops the first process last. It returns an error that
// names the processes whose exit code was not 0.
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

// End kills the processes that still run, and the simulators.
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
