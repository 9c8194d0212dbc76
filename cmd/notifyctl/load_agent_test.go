package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/server"
)

// process is an agent in a process of its own.
type process struct {
	*exec.Cmd
	addr string
}

func startAgent(t *testing.T, w *world, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.CommandContext(t.Context(), "notifyctl", append([]string{"load", "agent", "--listen", "127.0.0.1:0"}, args...)...)}
	p.Env = os.Environ()
	for k, v := range w.env {
		p.Env = append(p.Env, k+"="+v)
	}
	out, err := p.StderrPipe()
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	lines, ok := bufio.NewScanner(out), false
	for !ok && lines.Scan() {
		p.addr, ok = strings.CutPrefix(lines.Text(), "agent: listens at ")
	}
	if !ok {
		t.Fatalf("the agent did not start: %q, %v", lines.Text(), lines.Err())
	}
	go func() {
		for lines.Scan() { // so that it is never held up by a full pipe
		}
	}()
	return p
}

func (p *process) kill() {
	_ = p.Process.Kill() // it may have ended
	_ = p.Wait()         // it was killed
}

// TestAgents: agents in processes of their own send a run to a node. The ledger finds each
// message once; an agent that is killed is named, and the others go on.
func TestAgents(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	w := aimed(t, n)
	dir := t.TempDir()
	if _, errs, code := w.ctl(t.Context(), "load", "agent", "certs", "--out", dir, "127.0.0.1"); code != 0 || !strings.Contains(errs, "--agent-ca") {
		t.Fatal(errs)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	tls := []string{"--cert", in("agent.pem"), "--key", in("agent-key.pem"), "--client-ca", in("ca.pem"), "--server", n.url}
	agents := []*process{startAgent(t, w, tls...), startAgent(t, w, tls...), startAgent(t, w, tls...)}
	names := agents[0].addr + "," + agents[1].addr + "," + agents[2].addr
	with := []string{"--agents", names, "--agent-ca", in("ca.pem"), "--agent-cert", in("controller.pem"), "--agent-key", in("controller-key.pem")}
	file := scenarioFile(t, `
name: several
duration: 6s
drain: 1m
steps: [{name: pushes, rate: 90, users: 512, addresses: true}]
thresholds: [lost == 0, duplicates == 0, unexpected == 0, response.p99 < 1m]
`)
	t.Run("all", func(t *testing.T) { //nolint:paralleltest // the agents do one run at a time
		r := measure(t, w, file, append(with, "--duration", "2s")...)
		if l := &r.Ledger; r.Totals.Sent != 180 || l.Delivered != 180 || l.Lost+l.Duplicates+l.Unexpected != 0 || len(r.Steps) != 1 || r.Steps[0].EndToEnd.Count != 180 {
			t.Errorf("%+v, %+v", r.Totals, l)
		}
		for _, a := range r.Agents {
			if a.State != load.AgentDone || a.Sent != 60 {
				t.Errorf("%+v", a)
			}
		}
	})
	t.Run("without a certificate", func(t *testing.T) { //nolint:paralleltest // see above
		if _, errs, code := w.ctl(t.Context(), "load", "run", file, "--no-keep", "--agents", names, "--agent-ca", in("ca.pem")); code == 0 || !strings.Contains(errs, "agent "+agents[0].addr+": cannot be reached") {
			t.Errorf("exit %d: %s", code, errs)
		}
	})
	t.Run("without the scope", func(t *testing.T) { //nolint:paralleltest // see above
		token, err := n.signer.Sign(server.TokenSpec{Caller: "load", Scopes: []string{api.ScopeSend, api.ScopeRead}, Issuer: n.cfg.Auth.Issuer, Audience: n.cfg.Auth.Audience, TTL: time.Hour, Now: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		less := &world{env: map[string]string{"NOTIFYCTL_TOKEN": token}}
		for k, v := range w.env {
			less.env[k] = v
		}
		if _, errs, code := less.ctl(t.Context(), append([]string{"load", "run", file, "--no-keep"}, with...)...); code == 0 || !strings.Contains(errs, "operate") {
			t.Errorf("exit %d: %s", code, errs)
		}
	})
	t.Run("one is killed", func(t *testing.T) { //nolint:paralleltest // see above
		kill := time.AfterFunc(3*time.Second, func() { _ = agents[1].Process.Kill() })
		defer kill.Stop()
		r := measure(t, w, file, with...)
		if r.Verdict.Code != load.Inconclusive || !slices.ContainsFunc(r.Verdict.Reasons, func(s string) bool { return strings.Contains(s, "agent "+agents[1].addr+" was lost at ") }) {
			t.Errorf("%+v", r.Verdict)
		}
		if b, l := &r.Agents[1], &r.Ledger; b.State != load.AgentLost || b.NotSent == 0 || r.Totals.Intended != 540 || r.Totals.Sent != 540-b.NotSent || l.Lost+l.Duplicates+l.Unexpected != 0 {
			t.Errorf("%+v, %+v, %+v", b, r.Totals, l)
		}
	})
	t.Run("it is away", func(t *testing.T) { //nolint:paralleltest // see above
		_, errs, code := w.ctl(t.Context(), append([]string{"load", "run", file, "--no-keep"}, with...)...)
		if code == 0 || !strings.Contains(errs, "agent "+agents[1].addr+": cannot be reached; start it with notifyctl load agent") {
			t.Errorf("exit %d: %s", code, errs)
		}
	})
	t.Run("stopped", func(t *testing.T) { //nolint:paralleltest // see above
		if err := agents[0].Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := agents[0].Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
			t.Errorf("an agent that was stopped: %v", err)
		}
	})
}
