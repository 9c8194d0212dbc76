// Command agents shows that the rates of several load agents add up. First one agent sends to the
// null sink as fast as it can. Then four agents do the same, at the same time. A control group
// (needs Linux and root) limits each agent to the same share of a core.
//
// The last line of its output has key=value pairs: the rates in messages a second, and the number
// of cores that the agents used. It exits 1 if four agents send less than 3.5 times as many
// messages as one agent.
package main

import (
	"bufio"
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

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

const atLeast = 3.5

const scenario = `
name: agents
duration: %v
steps: [{target: "null", workers: 2}]
`

type options struct {
	share float64
	time  time.Duration
	keep  bool
}

func main() {
	var o options
	flag.Float64Var(&o.share, "share", 0.15, "share of a core that each agent gets")
	flag.DurationVar(&o.time, "time", 10*time.Second, "how long each run sends")
	flag.BoolVar(&o.keep, "keep", false, "keep the folder")
	flag.Parse()
	rig.Main("agents", o.keep, o.run)
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	bin := filepath.Join(dir, "notifyctl")
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/notifyctl")
	build.Stderr = os.Stderr
	rig.Ok(build.Run())
	file := filepath.Join(dir, "scenario.yaml")
	rig.Ok(os.WriteFile(file, fmt.Appendf(nil, scenario, o.time), 0o600))
	var (
		names    []string
		children []*rig.Child
		shares   []*rig.Share
	)
	defer func() {
		for _, c := range children {
			_ = c.Kill() // an error means that the agent has ended already
		}
		for _, s := range shares {
			s.Remove(ctx)
		}
	}()
	for i := range 4 {
		share, err := rig.NewShare(fmt.Sprintf("notifyd-agents-%d-%d", os.Getpid(), i), o.share)
		shares = append(shares, share) // also after an error, because the control group's folder may exist
		rig.Ok(err)
		child, addr := start(ctx, bin)
		children, names = append(children, child), append(names, addr)
		rig.Ok(share.Hold(child.Pid()))
	}
	one, oneCPU := send(ctx, bin, file, names[:1])
	four, fourCPU := send(ctx, bin, file, names)
	ok = four >= atLeast*one
	fmt.Printf("agents one=%.0f four=%.0f times=%.2f share=%v one_cores=%.2f four_cores=%.2f ok=%v\n", one, four, four/one, o.share, oneCPU, fourCPU, ok)
	return ok
}

// start starts an agent and returns its process and the address it listens at.
func start(ctx context.Context, bin string) (child *rig.Child, addr string) {
	c := exec.CommandContext(ctx, bin, "load", "agent", "--listen", "127.0.0.1:0")
	out := rig.Must(c.StderrPipe())
	child = rig.Must(rig.Spawn(c))
	lines := bufio.NewScanner(out)
	for found := false; !found; {
		if !lines.Scan() {
			panic(errors.Join(errors.New("a load agent ended before it listened"), lines.Err()))
		}
		addr, found = strings.CutPrefix(lines.Text(), "agent: listens at ")
	}
	go func() {
		for lines.Scan() { // read everything, because a full pipe would block the agent
		}
	}()
	return child, addr
}

// send runs the scenario on the agents. It returns the rate of acknowledged messages per
// second, and the number of cores that all agents together used in their last second.
func send(ctx context.Context, bin, file string, agents []string) (rate, cores float64) {
	c := exec.CommandContext(ctx, bin, "load", "run", file, "--agents", strings.Join(agents, ","), "--no-calibration", "--no-keep", "-q", "-o", "json")
	c.Stderr = os.Stderr
	var r load.Result
	rig.Ok(json.Unmarshal(rig.Must(c.Output()), &r))
	for _, a := range r.Agents {
		cores += a.CPU
		fmt.Printf("%d agents: %s sent %d with %.2f cores: %s\n", len(agents), a.Name, a.Sent, a.CPU, a.State)
	}
	return r.Rates.Acked, cores
}
