// Package rig has the code that the proof programs share. It builds a real notifyd, with or without
// a mutant, and starts it together with simulated providers. A Victim has one notifyd process, and
// a Fleet has several. Package rig sends load and kills processes. Then it compares what notifyd
// has acknowledged with the ledger of the simulators.
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

// Config configures a Victim.
type Config struct {
	// Bin is the path of notifyd; see Build.
	Bin string
	// Dir is the folder for the logs and the simulators' ledger. A proof that deletes or damages
	// the data of notifyd must not touch these files.
	Dir string
	// Data is the folder for the data of notifyd. Default: the folder "dev" in Dir.
	Data string
	// Simulate has further arguments of the simulators. By default the median time of an answer is
	// 20 ms and the p99 is 600 ms. A few answers take longer than the timeout of a call.
	Simulate []string
	// Args has further arguments of notifyd dev. Env has further environment variables, KEY=value.
	Args []string
	Env  []string
	// The checks write examples of broken promises to Out. Default: os.Stdout.
	Out io.Writer
}

// Victim is one notifyd process that a proof kills and starts again, together with the simulated
// providers. The simulators are never killed during a proof, because their ledger shows what notifyd
// has really sent.
type Victim struct {
	cfg     Config
	port    int
	client  *api.Client
	control string // URL of the simulators' control API
	sims    *Child
	proc    *Child
	log     *os.File
}

// New starts the simulators and returns a Victim. It does not start notifyd; see Start. The caller
// must call End, also after an error.
func New(ctx context.Context, cfg Config) (v *Victim, err error) {
	defer Catch(&err)
	if cfg.Data == "" {
		cfg.Data = filepath.Join(cfg.Dir, "dev")
	}
	if cfg.Out == nil {
		cfg.Out = os.Stdout
	}
	v = &Victim{cfg: cfg}
	// notifyd dev uses the port of the API and the next four ports.
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

// Faults adds rules that make a few calls of providers fail. So retries, parked messages and calls
// with an unknown result are in progress when the process dies.
func (v *Victim) Faults(ctx context.Context) error {
	for _, rule := range []string{
		`{"provider":"apns","rate":0.03,"do":"outage"}`,
		`{"provider":"apns","rate":0.002,"do":"reset_stream"}`,
		`{"provider":"apns","rate":0.005,"do":"error","code":"InternalServerError"}`,
		// A message that must wait more than 5 s is parked in the timer store.
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
		return nil // the process has already died at its fault point
	}); err != nil {
		return fmt.Errorf("notifyd does not become ready: %w (see %s)", err, v.log.Name())
	}
	return nil
}

var errEnded = errors.New("the process ended by itself")

// Restart starts notifyd again. If the process still runs, Restart stops it with SIGTERM first.
func (v *Victim) Restart(ctx context.Context, point string) error {
	if !v.proc.Gone() { // if the process has ended, Die has checked how
		if err := v.Stop(); err != nil {
			return err
		}
	}
	return v.Start(ctx, point)
}

// Die waits until the process is dead and returns a text that says when it died. If point is empty,
// Die kills the process after the given delay. If point is a fault point, the process should kill
// itself there; if it has not done so after 6 s, Die kills it. Die returns an error if the process
// did not end by SIGKILL.
func (v *Victim) Die(ctx context.Context, point string, delay time.Duration) (string, error) {
	began := time.Now()
	wait := delay
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

// Metrics returns the metrics of the process; see Scrape. Their port is the port of the API plus 1.
func (v *Victim) Metrics(ctx context.Context) (map[string]float64, error) {
	return Scrape(ctx, "http://127.0.0.1:"+strconv.Itoa(v.port+1)+"/metrics")
}

// Stop sends SIGTERM, so that the process drains, and waits until it has ended.
func (v *Victim) Stop() error { return v.proc.Stop() }

// End kills notifyd and the simulators if they still run.
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

// get reads the given path from the simulators' control API and decodes the JSON of the response
// into answer.
func (v *Victim) get(ctx context.Context, path string, answer any) error {
	return v.ask(ctx, http.MethodGet, path, "", answer)
}

func (v *Victim) ask(ctx context.Context, method, path, body string, answer any) error {
	b, err := fetch(ctx, httpClient, method, v.control+path, body)
	if err != nil || answer == nil {
		return err
	}
	return json.Unmarshal(b, answer)
}

// fetch sends a request and returns the whole body of the answer. If the status is not 2xx, it
// returns the body and an error.
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

// ledgerMissing counts the ids that no provider has accepted, and prints up to five of them.
func (v *Victim) ledgerMissing(ctx context.Context, ids map[string]bool) (int64, error) {
	n, some, err := v.Missing(ctx, slices.Collect(maps.Keys(ids)))
	for i, id := range some {
		if i < 5 {
			fmt.Fprintln(v.cfg.Out, "  lost:", id)
		}
	}
	return n, err
}

// ledgerBase returns the number of receivers of the fan-out f that a provider has accepted.
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

// explain prints the timeline of a notification.
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
