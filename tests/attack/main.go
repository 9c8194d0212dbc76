// Command attack starts real servers and attacks them. A table lists the tries: callbacks to
// addresses that are not public, forged tokens, reads of other callers' data, and input that
// costs much memory or time. Each try defines which behaviour of the server is a refusal.
//
// attack runs itself and the servers in a network namespace. In this namespace every address
// belongs to this machine (world.go). So the servers run with production settings, attack sees a
// connection to any address, and no packet leaves the machine. attack needs root, or a kernel
// with user namespaces.
//
// The last line of the output has key=value pairs. attack exits with 1 if the server did not
// refuse a try, and with 2 if the tries could not be made.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	mutant  string
	only    string
	keep    bool
	verbose bool
	inside  string // folder of the binaries; not empty: this process already runs in the namespace
}

func main() {
	var o options
	flag.StringVar(&o.mutant, "mutant", "", "build notifyd with this mutant, which breaks one mechanism; without -only, make only the tries of the group that must notice it; the mutants: "+strings.Join(rig.MutantNames("attack"), " "))
	list := flag.Bool("mutants", false, "print the mutants' names")
	flag.StringVar(&o.only, "only", "", "make only the tries of these groups, separated by commas")
	flag.BoolVar(&o.keep, "keep", false, "keep the data and the logs")
	flag.BoolVar(&o.verbose, "v", false, "print each try and its description of a refusal")
	flag.StringVar(&o.inside, "inside", "", "used by the command itself: the folder of the binaries")
	flag.Parse()
	if *list {
		fmt.Println(strings.Join(rig.MutantNames("attack"), "\n"))
		return
	}
	if o.inside != "" {
		rig.Main("attack", o.keep, o.attack)
		return
	}
	rig.Main("attack", o.keep, o.outside)
}

// outside builds the binaries and runs this command again inside the namespace.
func (o *options) outside(ctx context.Context, dir string) (ok bool) {
	rig.Must(rig.Notifyd(ctx, dir, "attack", o.mutant))
	rig.Must(rig.Notifyctl(ctx, dir))
	self := rig.Must(os.Executable())
	c := exec.CommandContext(ctx, self, append([]string{"-inside", dir}, os.Args[1:]...)...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	isolate(c)
	err := c.Run()
	if c.ProcessState == nil {
		panic(fmt.Errorf("attack needs its own network namespace, which needs root or user namespaces: %w", err))
	}
	switch c.ProcessState.ExitCode() {
	case 0:
		return true
	case 1:
		return false
	}
	panic(fmt.Errorf("the tries could not be made: %w", err))
}

// attack makes the tries. It returns true if at least one try was made and all were refused.
func (o *options) attack(ctx context.Context, dir string) (ok bool) {
	began := time.Now()
	ctx, stop := context.WithTimeout(ctx, 10*time.Minute)
	defer stop()
	if err := enterWorld(dir); err != nil {
		panic(fmt.Errorf("cannot prepare the network namespace: %w", err))
	}
	r := &world{bin: o.inside, dir: dir, procs: map[string]*proc{}}
	defer r.end()
	r.open(ctx)
	var t tally
	only := o.only
	if only == "" {
		only = rig.Must(rig.Mutants("attack"))[o.mutant].By // "" without a mutant: all groups
	}
	for _, g := range groups() {
		if only != "" && !slices.Contains(strings.Split(only, ","), g.name) {
			continue
		}
		if err := t.run(ctx, r, g, o.verbose); err != nil {
			if t.through == 0 {
				panic(err)
			}
			// Only print the error: a try got through before, so the run has failed already.
			fmt.Println(" ", err)
			break
		}
	}
	good := t.through == 0 && t.tried > 0
	fmt.Printf("attack tried=%d refused=%d through=%d seconds=%.0f ok=%v\n", t.tried, t.tried-t.through, t.through, time.Since(began).Seconds(), good)
	return good
}
