package main

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"syscall"
)

// human reports whether results are printed for people to read.
func (p *program) human() bool { return p.global.output == "table" && p.global.jq == "" }

// paged runs write. On a terminal what it prints goes through $PAGER, or less. Where
// there is no pager it is printed as it is.
func (p *program) paged(ctx context.Context, write func() error) error {
	if !p.outTerminal || !p.human() {
		return write()
	}
	pager := first(p.getenv("PAGER"), "less")
	run := exec.CommandContext(ctx, "sh", "-c", pager)
	run.Env = append(run.Environ(), "LESS="+first(p.getenv("LESS"), "FRX")) // ends by itself if one screen is enough
	out := p.out
	run.Stdout, run.Stderr = out, p.err
	if _, err := exec.LookPath("less"); err != nil && pager == "less" {
		return write()
	}
	in, err := run.StdinPipe()
	if err != nil || run.Start() != nil {
		return write()
	}
	p.out = in
	err = write()
	p.out = out
	_ = in.Close() // the pager may have ended
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		err = nil // its reader has seen enough
	}
	end := run.Wait()
	if e, ok := errors.AsType[*exec.ExitError](end); ok && e.ExitCode() == 127 { // there is no such pager
		return write()
	}
	return errors.Join(err, end)
}
