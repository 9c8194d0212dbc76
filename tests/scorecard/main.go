// Command scorecard runs programs that prove the promises of the README. It writes the figures to a
// signed file and to an HTML page. The proofs show four things:
//
//   - When notifyd releases 50,000 timers a second, the p99 of their lateness is below 50 ms.
//   - No message is early or lost. notifyd repeats no more messages than it counts.
//   - If a process is killed, the restarted process takes over its work.
//   - A replay sends each dead letter once.
//
// The files:
//
//	main.go   flags, the run
//	parts.go  the proofs, their arguments, and the limits of their figures
//	card.go   the file: its content and signature
//	page.go   the page
//
// The last line of the output has key=value pairs. scorecard exits with 1 if a promise is broken.
// With -verify FILE it only checks the signature of the file; it runs no proof.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/internal/atomicfile"
)

type options struct {
	minutes float64
	only    string
	out     string
	key     string
	verify  string
	signer  string
}

func main() {
	var o options
	flag.Float64Var(&o.minutes, "minutes", 10, "approximate time of all proofs together, in minutes; they take at least 5 minutes, because each proof has a shortest length")
	flag.StringVar(&o.only, "only", "", "proofs to run, e.g. \"lateness torture\"; empty: all")
	flag.StringVar(&o.out, "out", "bench", "folder of scorecard.json and scorecard.html")
	flag.StringVar(&o.key, "key", os.Getenv("SCORECARD_KEY"), "file with the Ed25519 key that signs, made if it is missing; default scorecard.key in the folder of -out")
	flag.StringVar(&o.verify, "verify", "", "check the signature of this file, and run nothing")
	flag.StringVar(&o.signer, "signer", "", "with -verify: the public key that must have signed, as in the field signer of the file; empty: any key, which shows only that the file was not changed after it was signed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	pass, err := o.run(ctx, os.Stdout, execute)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "scorecard:", err)
		os.Exit(2)
	case !pass:
		os.Exit(1)
	}
}

// execution runs a command and returns its standard output and its exit code. It also copies the
// standard output to progress while the command runs.
type execution func(ctx context.Context, command []string, progress io.Writer) (out []byte, exit int, err error)

func execute(ctx context.Context, command []string, progress io.Writer) ([]byte, int, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that a proof stops the processes that it started
	cmd.WaitDelay = time.Minute
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, progress), os.Stderr
	err := cmd.Run()
	if _, ran := errors.AsType[*exec.ExitError](err); ran && ctx.Err() == nil {
		err = nil // the exit code is the proof's verdict
	}
	exit := -1
	if cmd.ProcessState != nil {
		exit = cmd.ProcessState.ExitCode()
	}
	return out.Bytes(), exit, err
}

func (o *options) run(ctx context.Context, out io.Writer, ex execution) (pass bool, err error) {
	if o.verify != "" {
		return o.check(out)
	}
	if !(o.minutes > 0 && o.minutes <= 24*60) {
		return false, fmt.Errorf("-minutes must be above 0 and at most 1440 (a day), not %g", o.minutes)
	}
	parts, err := partsOf(o.minutes, o.only, os.Getenv)
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return false, err
	}
	if o.key == "" {
		o.key = filepath.Join(o.out, "scorecard.key")
	}
	key, err := openKey(o.key) // before the proofs, which may run for an hour, so that a bad key fails at once
	if err != nil {
		return false, err
	}
	card := Card{Schema: 1, Minutes: o.minutes, Started: time.Now().UTC().Truncate(time.Second), Machine: thisMachine(), Pass: true}
	card.setCommit(ctx)
	for i := range parts {
		p := &parts[i]
		fmt.Fprintf(out, "scorecard: %s: %s\n", p.name, strings.Join(p.command, " "))
		done, err := p.prove(ctx, ex, out)
		if err != nil {
			return false, err
		}
		card.Parts, card.Pass = append(card.Parts, done), card.Pass && done.Pass
	}
	card.Ended = time.Now().UTC().Truncate(time.Second)
	signed, err := card.sign(key)
	if err != nil {
		return false, err
	}
	page, err := card.page()
	if err != nil {
		return false, err
	}
	file := filepath.Join(o.out, "scorecard.json")
	err = errors.Join(atomicfile.WriteFile(file, signed), atomicfile.WriteFile(filepath.Join(o.out, "scorecard.html"), page))
	fmt.Fprintln(out, card.closingLine(file))
	return card.Pass, err
}

// check verifies the signature of the file o.verify and prints the result to the writer out.
func (o *options) check(out io.Writer) (bool, error) {
	b, err := os.ReadFile(o.verify)
	if err != nil {
		return false, err
	}
	card, err := verify(b, o.signer)
	if err != nil {
		fmt.Fprintf(out, "scorecard file=%s signature=false\n", o.verify)
		return false, fmt.Errorf("%s: %w", o.verify, err)
	}
	fmt.Fprintf(out, "scorecard file=%s signature=true signer=%s commit=%s pass=%t\n", o.verify, card.Signer, card.Commit, card.Pass)
	return true, nil
}
