package rig

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Proof tests the promises of a real notifyd, with the folder dir for data and logs. It returns true
// if notifyd kept its promises. If the test could not be completed, Proof panics as Ok does.
type Proof func(ctx context.Context, dir string) (ok bool)

// Main runs a proof in a new temporary folder until it ends or is interrupted. If the promises were
// kept, Main returns. If a promise was broken, Main ends the process with exit code 1. If the test
// could not be completed, the exit code is 2. Main removes the folder if the promises were kept and
// keepFolder is false, or if the folder is empty.
func Main(name string, keepFolder bool, proof Proof) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := inFolder(ctx, name, keepFolder, proof)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}

func inFolder(ctx context.Context, name string, keepFolder bool, proof Proof) (ok bool, err error) {
	dir, err := os.MkdirTemp("", "notifyd-"+name+"-")
	if err != nil {
		return false, err
	}
	defer func() {
		if ok && !keepFolder {
			_ = os.RemoveAll(dir)
			return
		}
		if os.Remove(dir) != nil { // the folder is not empty
			fmt.Println("data and logs are in", dir)
		}
	}()
	err = Try(func() { ok = proof(ctx, dir) })
	return ok, err
}
