// Package rig has the code that the proof programs share. It builds a real notifyd, with or
// without a mutant, and starts it beside simulated providers: one process (Victim) or an
// installation of several (Fleet). It sends load, kills processes, and checks the promises
// against the ledger of the simulators.
package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/freeport"
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// Config of a Victim.
type Config struct {
	// Bin is the notifyd; see Build.
	Bin string
	// Dir keeps what must not be lost: the logs, and the simulators' ledger.
	Dir string
	// Data is where notifyd keeps its own. Default: the folder dev in Dir.
	Data string
	// Simulate are further arguments of the simulators. Answers take 20 ms in the median
	// and 600 ms at p99 unless they say otherwise; a few take longer than a call may.
	Simulate []string
	// Args are further arguments of notifyd dev, Env its further environment.
	Args []string
	Env  []string
	// Out gets examples of what is wrong. Default: os.Stdout.
	Out io.Writer
}

// Victim is the notifyd under torture, and the simulated providers beside it,
// which are never killed: their ledger is the proof.
type Victim struct {
	cfg     Config
	port    int
	client  *api.Client
	control string // of the simulators
	sims    *Child
	proc    *Child
	log     *os.File
}

// New starts the simulators and returns a Victim that is not started yet. End must be called,
// also after an error.
func New(ctx context.Context, cfg Config) (v *Victim, err error) {
	defer Catch(&err)
	if cfg.Data == "" {
		cfg.Data = filepath.Join(cfg.Dir, "dev")
	}
	if cfg.Out == nil {
		cfg.Out = os.Stdout
	}
	v = &Victim{cfg: cfg}
	// dev takes the API's port and the four behind it.
	v.port = Must(freeport.Find(5))
	v.log = Must(os.Create(filepath.Join(cfg.Dir, "notifyd.log")))
	url := "http://127.0.0.1:" + strconv.Itoa(v.port)
	simDir := filepath.Join(cfg.Dir, "simulator")
	args := []string{"simulate", "--dir", simDir, "--latency", "20ms", "--latency-p99", "600ms", "--sendgrid-webhook", url + "/v1/receipts/sendgrid"}
	sims := exec.CommandContext(ctx, cfg.Bin, append(args, cfg.Simulate...)...)
	sims.Stderr = v.log
	v.sims = Must(Spawn(sims))
	var s struct{ URLs simulator.URLs }
	err = eventually(ctx, Patience, func() error {
		b, err := os.ReadFile(filepath.Join(simDir, "simulator.json"))
		if err == nil {
			err = json.Unmarshal(b, &s)
		}
		if v.control = s.URLs.Control; err == nil {
			err = v.get(ctx, "/healthz", nil)
		}
		return err
	})
	v.client = &api.Client{BaseURL: url, Token: v.token, HTTPClient: &http.Client{Transport: api.NewTransport(0), Timeout: time.Minute}}
	return v, err
}

func (v *Victim) token(context.Context) (string, error) {
	b, err := os.ReadFile(filepath.Join(v.cfg.Data, "token"))
	return strings.TrimSpace(string(b)), err
}

// Faults make providers fail now and then, so that retries, parked work and
// ambiguous answers are under way when the process dies.
func (v *Victim) Faults(ctx context.Context) error {
	for _, rule := range []string{
		`{"provider":"apns","rate":0.03,"do":"outage"}`,
		`{"provider":"apns","rate":0.002,"do":"reset_stream"}`,
		`{"provider":"apns","rate":0.005,"do":"error","code":"InternalServerError"}`,
		// A wait of more than 5 s is parked in the timer store.
		`{"provider":"apns","rate":0.01,"do":"error","code":"TooManyRequests","retry_after":"6s"}`,
		`{"provider":"sendgrid","rate":0.02,"do":"error","status":503}`,
	} {
		if err := v.Rule(ctx, rule); err != nil {
			return err
		}
	}
	return nil
}

// Start starts notifyd and waits until it is ready. If point is not empty, notifyd kills itself
// at that fault point.
func (v *Victim) Start(ctx context.Context, point string) error {
	args := []string{"dev", "--data-dir", v.cfg.Data, "--port", strconv.Itoa(v.port),
		"--simulator-dir", filepath.Join(v.cfg.Dir, "simulator"), "--context", "", "--seed", "none", "--ready-timeout", "0"}
	c := exec.CommandContext(ctx, v.cfg.Bin, append(args, v.cfg.Args...)...)
	c.Env = append(append(os.Environ(), v.cfg.Env...), "NOTIFYD_FAULT="+point)
	c.Stdout, c.Stderr = v.log, v.log
	var err error
	if v.proc, err = Spawn(c); err != nil {
		return err
	}
	if err := eventually(ctx, Patience, func() error {
		switch {
		case !v.proc.Gone():
			return v.client.Ready(ctx)
		case point == "":
			return errEnded
		}
		return nil // died at its fault point already
	}); err != nil {
		return fmt.Errorf("notifyd does not become ready: %w (see %s)", err, v.log.Name())
	}
	return nil
}

var errEnded = errors.New("it ended by itself")

// Restart starts notifyd again. The process must have ended.
func (v *Victim) Restart(ctx context.Context, point string) error {
	if !v.proc.Gone() { // how it has ended, Die has looked at
		if err := v.Stop(); err != nil {
			return err
		}
	}
	return v.Start(ctx, point)
}

// Die lets the process live for a while and kills it, or waits for it to die at
// its fault point.
func (v *Victim) Die(ctx context.Context, point string, after time.Duration) (string, error) {
	began := time.Now()
	wait := after
	if point != "" {
		wait = 6 * time.Second
	}
	select {
	case <-v.proc.Exited():
		if !v.proc.Killed() {
			return "", fmt.Errorf("notifyd ended by itself: %v (see %s)", v.proc.err, v.log.Name()) //nolint:errorlint // nil when it exited with 0
		}
		return fmt.Sprintf("at %s after %.1f s", point, time.Since(began).Seconds()), nil
	case <-time.After(wait):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if err := v.proc.Kill(); err != nil {
		return "", err
	}
	if point != "" {
		return fmt.Sprintf("at a random moment (%s was not reached) after %.1f s", point, time.Since(began).Seconds()), nil
	}
	return fmt.Sprintf("at a random moment after %.1f s", time.Since(began).Seconds()), nil
}

// Metrics of the process, see Scrape. Their port is the one behind the API's.
func (v *Victim) Metrics(ctx context.Context) (map[string]float64, error) {
	return Scrape(ctx, "http://127.0.0.1:"+strconv.Itoa(v.port+1)+"/metrics")
}

// Stop sends SIGTERM, so that the process drains, and waits for its end.
func (v *Victim) Stop() error { return v.proc.Stop() }

// End kills the processes that still run.
func (v *Victim) End() {
	for _, c := range []*Child{v.proc, v.sims} {
		if c != nil {
			_ = c.Kill()
		}
	}
	if v.log != nil {
		v.log.Close()
	}
	if v.client != nil {
		v.client.HTTPClient.CloseIdleConnections()
	}
	httpClient.CloseIdleConnections()
}

var httpClient = &http.Client{Timeout: 30 * time.Second}

// get asks the control of the simulators.
func (v *Victim) get(ctx context.Context, path string, out any) error {
	return v.ask(ctx, http.MethodGet, path, "", out)
}

func (v *Victim) ask(ctx context.Context, method, path, body string, out any) error {
	b, err := fetch(ctx, httpClient, method, v.control+path, body)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(b, out)
}

// fetch returns an answer of 2xx, read to its end.
func fetch(ctx context.Context, cl *http.Client, method, url, body string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := cl.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s %.300s: %s %s", method, url, body, resp.Status, b)
	}
	return b, err
}

// ledgerMissing counts the ids no provider was sent.
func (v *Victim) ledgerMissing(ctx context.Context, ids map[string]bool) (int64, error) {
	n, some, err := v.Missing(ctx, slices.Collect(maps.Keys(ids)))
	for i, id := range some {
		if i < 5 {
			fmt.Fprintln(v.cfg.Out, "  lost:", id)
		}
	}
	return n, err
}

// ledgerBase counts the receivers of a fan-out that a provider was sent.
func (v *Victim) ledgerBase(ctx context.Context, f load.Ack) (int64, error) {
	var out simulator.BaseReport
	err := v.get(ctx, fmt.Sprintf("/ledger/base?base=%s&expected=%d", f.Base, f.Count), &out)
	return int64(out.IDs), err
}

func (v *Victim) ledgerTotals(ctx context.Context, r *Result) error {
	var out simulator.Summary
	err := v.get(ctx, "/ledger/totals", &out)
	shown := 0
	for _, x := range out.Order.Examples {
		if x.Attempt && shown < 5 {
			shown++
			fmt.Fprintf(v.cfg.Out, "  reordered: user %s: message %d (%s) came after %d\n", x.User, x.Seq, x.ID, x.After)
			v.explain(ctx, x.ID)
		}
	}
	r.Duplicates, r.Ambiguous, r.Reordered, r.NoID = int64(out.Duplicates), int64(out.Ambiguous), int64(out.Order.ReorderedAttempts), int64(out.NoID)
	return err
}

// explain prints what is known of a notification.
func (v *Victim) explain(ctx context.Context, id string) {
	t, err := v.client.Timeline(ctx, id)
	if err != nil {
		fmt.Fprintln(v.cfg.Out, "    ", err)
		return
	}
	for _, e := range t.Events {
		at := "-"
		if e.At != nil {
			at = e.At.Format("15:04:05.000")
		}
		fmt.Fprintf(v.cfg.Out, "    %s  %s %s attempt=%d code=%s %s\n", at, e.Type, e.State, e.Attempt, e.Code, e.Detail)
	}
}

func eventually(ctx context.Context, limit time.Duration, f func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := f()
		if err == nil || errors.Is(err, errEnded) || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
