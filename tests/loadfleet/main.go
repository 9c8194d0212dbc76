// Command loadfleet sends load to an installation of notifyd from three agents under a load grant.
// It shows that the load stays within the grant. The installation has two processes with the API
// role and two processes with the other roles. It uses the servers of make engines. Each agent has
// its own network namespace, connected to the installation by a virtual cable. A "production
// server", which gave no grant, also has such a namespace.
//
// loadfleet makes four checks:
//
//  1. A complete run: the merged figures meet the thresholds, and no message is lost or repeated.
//  2. Loadfleet kills an agent in the middle of a run: the verdict names the agent. The load that
//     is not sent is about the agent's share of the rest of the run.
//  3. Loadfleet revokes the grant in the middle of a run: more than a second later, the API answers
//     no request of the run.
//  4. A run has the production server as its target: no packet goes to that server.
//
// The last line of the output has key=value pairs. loadfleet exits with 1 if a check fails.
// scripts/loadfleet.sh passes the addresses of the servers.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/freeport"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	rig.Servers

	rate int
	keep bool
}

const (
	agents = 3
	// runFor is how long a run sends load. middle is the time from the first progress of a run
	// until its agent is killed or its grant is revoked.
	runFor = 20 * time.Second
	middle = 8 * time.Second
)

func main() {
	var o options
	flag.IntVar(&o.rate, "rate", 100, "single requests a second of all agents together; the same number of mails a second goes in batches")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs")
	o.Flags()
	flag.Parse()
	rig.Main("loadfleet", o.keep, o.run)
}

// fleet is the installation under load, the agents and their networks.
type fleet struct {
	*rig.Fleet
	ctl    string   // path of notifyctl
	dir    string   // folder of the run
	ctlEnv []string // environment of notifyctl
	target string   // URL of the API under load
	nets   []*network
	agents []*rig.Child
	token  string // path of the file with the grant
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	began := time.Now()
	bin := rig.Must(rig.Notifyd(ctx, dir, "loadfleet", ""))
	home := filepath.Join(dir, "home")
	f := &fleet{dir: dir, ctl: filepath.Join(dir, "notifyctl"), ctlEnv: append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home), token: filepath.Join(dir, "grant")}
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", f.ctl, "./cmd/notifyctl").CombinedOutput(); err != nil {
		panic(fmt.Errorf("build notifyctl: %w: %s", err, out))
	}
	defer o.Apart(ctx, "loadfleet")()
	var err error
	f.Fleet, err = rig.NewFleet(ctx, rig.FleetConfig{Bin: bin, Dir: dir, Engines: o.YAML(0, 0), First: "api", Simulate: []string{"--latency-p99", "0"}})
	defer f.End()
	rig.Ok(err)
	defer func() {
		for _, n := range f.nets {
			n.remove()
		}
	}()
	for k := range agents + 1 {
		f.nets = append(f.nets, newNetwork(ctx, k+1))
	}
	address := fmt.Sprintf("%s:%d", f.nets[0].near, rig.Must(freeport.Find(1)))
	f.target = "http://" + address
	for i := range 2 {
		rig.Must(f.Run(ctx, fmt.Sprint("work-", i+1), "worker,scheduler,dispatcher,operator", nil))
	}
	rig.Must(f.Run(ctx, "api-2", "api", nil, "api.listen="+address, "api.plaintext=anywhere"))
	fmt.Printf("2 processes for requests and 2 for work are ready in %.0f s, at %s\n", time.Since(began).Seconds(), f.target)
	f.mustCtl(ctx, "context", "add", "staging", "--server", f.target, "--token-file", filepath.Join(dir, "dev", "token"), "--simulators", f.V.Control())
	f.startAgents(ctx)
	scenario := o.scenario(dir)
	grant := f.mustCtl(ctx, "load", "grant", "--for", "20m", "--rate", fmt.Sprint(3*o.rate), "--targets", "push,email", "--providers", "simulated", "--out", f.token, "-o", "json", "--jq", ".id")
	grant = strings.Trim(strings.TrimSpace(grant), `"`)

	f.start(ctx, scenario, "--duration", "10s").result() // warm-up, because servers are slow just after their start
	whole := f.start(ctx, scenario)
	w := whole.result()
	wholeOK := w.Exit == 0 && w.Ledger.Checked && w.Ledger.Lost == 0 && w.Ledger.Duplicates == 0 && w.Totals.Sent == w.Totals.Intended && w.Totals.Acked == w.Totals.Sent
	fmt.Printf("whole: verdict %s, sent %d of %d, lost %d, duplicates %d, exit %d\n", w.Verdict.Code, w.Totals.Sent, w.Totals.Intended, w.Ledger.Lost, w.Ledger.Duplicates, w.Exit)

	killed := f.start(ctx, scenario)
	killed.waitSending()
	rig.Ok(rig.Pause(ctx, middle))
	rig.Ok(f.agents[1].Kill())
	k := killed.result()
	named := strings.Contains(strings.Join(k.Verdict.Reasons, "; "), f.nets[1].far)
	share := 1 - float64(k.Totals.Sent)/float64(k.Totals.Intended)
	// The killed agent had a third of the load. So a third of the load after the kill is not sent.
	wantShare := (1 - middle.Seconds()/runFor.Seconds()) / agents
	killedOK := named && k.Ledger.Lost == 0 && k.Ledger.Duplicates == 0 && share > wantShare/2 && share < 1.5*wantShare
	fmt.Printf("killed: verdict %s, %.1f%% not sent, lost %d, duplicates %d, unexpected %d: %s\n", k.Verdict.Code, 100*share, k.Ledger.Lost, k.Ledger.Duplicates, k.Ledger.Unexpected, strings.Join(k.Verdict.Reasons, "; "))
	f.startAgent(ctx, 1)

	revoked := f.start(ctx, scenario)
	revoked.waitSending()
	rig.Ok(rig.Pause(ctx, middle))
	f.mustCtl(ctx, "load", "revoke", grant)
	rig.Ok(rig.Pause(ctx, time.Second))
	after := f.answeredSends(ctx)
	rig.Ok(rig.Pause(ctx, 3*time.Second))
	late := f.answeredSends(ctx) - after
	r := revoked.result()
	revokedOK := late == 0 && r.Partial && strings.Contains(r.Stopped+strings.Join(r.Verdict.Reasons, ";"), "revoked")
	fmt.Printf("revoked: %.0f requests came later than a second after the revocation, sent %d of %d: %s\n", late, r.Totals.Sent, r.Totals.Intended, r.Stopped)

	prod := f.nets[agents]
	before := prod.packets()
	refused := true
	for _, args := range [][]string{{"--grant", f.token}, {}, {"--agents", f.agentAddresses()}} {
		c := f.command(ctx, append([]string{"load", "run", scenario, "--no-ui", "--no-keep", "--server", "http://" + prod.far + ":7420"}, args...)...)
		_ = c.Run() // fails: the server gave no grant
		refused = refused && c.ProcessState.ExitCode() != 0
	}
	packets := prod.packets() - before
	ok = wholeOK && killedOK && revokedOK && packets == 0 && refused
	fmt.Printf("loadfleet agents=%d sent=%d accepted=%d lost=%d duplicates=%d killed_named=%v killed_not_sent=%.3f killed_lost=%d revoked_late=%.0f packets_without_grant=%d seconds=%.0f ok=%v\n",
		agents, w.Totals.Sent, w.Totals.Acked, w.Ledger.Lost, w.Ledger.Duplicates, named, share, k.Ledger.Lost, late, packets, time.Since(began).Seconds(), ok)
	return ok
}

// scenario writes the scenario file of the runs and returns its path.
func (o *options) scenario(dir string) string {
	file := filepath.Join(dir, "scenario.yaml")
	rig.Ok(os.WriteFile(file, []byte(fmt.Sprintf(`name: loadfleet
duration: %s
steps:
  - {name: single, target: http-single, channel: push, rate: %d, workers: 16, users: 10k, addresses: true, category: transactional}
  - {name: batch, target: http-batch, channel: email, rate: %d, size: 20, workers: 8, users: 10k, addresses: true, category: transactional}
drain: 3m
thresholds: [lost == 0, duplicates == 0, failed == 0, "rate{step=single} >= %d", "response{step=single}.p99 < 10s"]
`, runFor, o.rate, o.rate, o.rate*9/10)), 0o600))
	return file
}

func (f *fleet) command(ctx context.Context, args ...string) *exec.Cmd {
	c := rig.DieWithStarter(exec.CommandContext(ctx, f.ctl, args...))
	c.Env = f.ctlEnv
	return c
}

func (f *fleet) mustCtl(ctx context.Context, args ...string) string {
	var out, errs bytes.Buffer
	c := f.command(ctx, args...)
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		panic(fmt.Errorf("notifyctl %s: %w\n%s", strings.Join(args, " "), err, errs.String()))
	}
	return out.String()
}

const agentPort = "7431"

// agentAddresses returns the addresses of all agents, separated by commas.
func (f *fleet) agentAddresses() string {
	var all []string
	for _, n := range f.nets[:agents] {
		all = append(all, n.far+":"+agentPort)
	}
	return strings.Join(all, ",")
}

func (f *fleet) startAgents(ctx context.Context) {
	args := []string{"load", "agent", "certs", "--out", filepath.Join(f.dir, "certs")}
	for _, n := range f.nets[:agents] {
		args = append(args, n.far)
	}
	f.mustCtl(ctx, args...)
	f.agents = make([]*rig.Child, agents)
	for i := range agents {
		f.startAgent(ctx, i)
	}
}

func (f *fleet) cert(name string) string { return filepath.Join(f.dir, "certs", name) }

func (f *fleet) startAgent(ctx context.Context, i int) {
	log := rig.Must(os.Create(filepath.Join(f.dir, fmt.Sprintf("agent-%d.log", i+1))))
	defer log.Close()
	n := f.nets[i]
	c := n.command(ctx, f.ctl, "load", "agent", "--listen", n.far+":"+agentPort, "--cert", f.cert("agent.pem"), "--key", f.cert("agent-key.pem"), "--client-ca", f.cert("ca.pem"))
	c.Env, c.Stdout, c.Stderr = f.ctlEnv, log, log
	f.agents[i] = rig.Must(rig.Spawn(c))
	rig.Ok(rig.Until(ctx, "agent "+n.far+" listens", func() (bool, error) {
		if f.agents[i].Gone() {
			return false, fmt.Errorf("the load agent %s ended before it listened; see %s", n.far, log.Name())
		}
		b := rig.Must(os.ReadFile(log.Name()))
		return bytes.Contains(b, []byte("listens at")), nil
	}))
}

// loadRun is a process of notifyctl load run.
type loadRun struct {
	ctx  context.Context //nolint:containedctx // context of the run
	out  string          // path of the result file
	log  string          // path of the log file
	proc *rig.Child
}

func (f *fleet) start(ctx context.Context, scenario string, args ...string) *loadRun {
	r := &loadRun{ctx: ctx, out: filepath.Join(f.dir, fmt.Sprintf("result-%d.json", time.Now().UnixMilli()))}
	r.log = strings.TrimSuffix(r.out, ".json") + ".log"
	log := rig.Must(os.Create(r.log))
	defer log.Close()
	c := f.command(ctx, append([]string{
		"load", "run", scenario, "--context", "staging", "--mode", "context", "--grant", f.token, "--no-ui", "--no-keep", "--out", r.out,
		"--agents", f.agentAddresses(), "--agent-ca", f.cert("ca.pem"), "--agent-cert", f.cert("controller.pem"), "--agent-key", f.cert("controller-key.pem"),
	}, args...)...)
	c.Stdout, c.Stderr = log, log
	r.proc = rig.Must(rig.Spawn(c))
	return r
}

// waitSending waits until the run prints its first line of progress.
func (r *loadRun) waitSending() {
	rig.Ok(rig.Until(r.ctx, "the run sends", func() (bool, error) {
		if r.proc.Gone() {
			return false, errors.New("the load run ended before it sent a request; see " + r.log)
		}
		return bytes.Contains(rig.Must(os.ReadFile(r.log)), []byte("sent")), nil
	}))
}

func (r *loadRun) result() *load.Result {
	if err := r.proc.Wait(rig.Patience); err != nil && !r.proc.Gone() {
		panic(err)
	}
	b, err := os.ReadFile(r.out)
	if err != nil {
		panic(fmt.Errorf("the load run wrote no result file: %w\n%s", err, rig.Must(os.ReadFile(r.log))))
	}
	var res load.Result
	rig.Ok(json.Unmarshal(b, &res))
	return &res
}

// answeredSends returns how many requests to send notifications the process api-2 has answered so
// far. This process is the target of the load.
func (f *fleet) answeredSends(ctx context.Context) float64 {
	for _, p := range f.Processes() {
		if p.Name == "api-2" {
			return rig.Must(rig.ScrapeSum(ctx, "http://"+p.Admin+"/metrics", "notifyd_http_requests_total", `route="/v1/notifications`))
		}
	}
	panic("loadfleet: the fleet has no process api-2")
}
