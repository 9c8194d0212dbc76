package rig

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Proof runs a proof of a real notifyd in the folder dir. It returns whether the promises held.
// It ends by Ok if that could not be shown.
type Proof func(ctx context.Context, dir string) (ok bool)

// Main runs a proof until it is over or interrupted, and ends the process: 0 what
// was promised held, 1 it did not, 2 it could not be shown. The folder stays if keep
// says so, or the proof was not given.
func Main(name string, keep bool, proof Proof) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := inFolder(ctx, name, keep, proof)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}

func inFolder(ctx context.Context, name string, keep bool, proof Proof) (ok bool, err error) {
	dir, err := os.MkdirTemp("", "notifyd-"+name+"-")
	if err != nil {
		return false, err
	}
	defer func() {
		if ok && !keep {
			_ = os.RemoveAll(dir)
			return
		}
		if os.Remove(dir) != nil { // there is something in it
			fmt.Println("data and logs are in", dir)
		}
	}()
	err = Try(func() { ok = proof(ctx, dir) })
	return ok, err
}
