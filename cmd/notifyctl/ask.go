package main

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/notifyd/notifyd/pkg/term"
)

// danger says how much a command asks for.
type danger uint8

const (
	changes danger = iota // asks in a protected context
	undone                // cannot be undone for many: always asks
)

// confirm asks before what is done. Where nobody can be asked, it is an error
// that names the flag.
func (p *program) confirm(t *target, d danger, what string) error {
	if p.global.yes || (d == changes && !t.ctx.Protected) {
		return nil
	}
	where := t.server
	if t.name != "" {
		where = fmt.Sprintf("context %q, %s", t.name, t.server)
	}
	if t.ctx.Protected {
		where += ", protected"
	}
	if !p.inTerminal || p.global.noInput {
		return &term.Error{
			Exit: term.ExitUsage, Err: fmt.Errorf("%s (%s) needs --yes", term.Clean(what), where), Next: []string{"the same command with --yes"},
		}
	}
	fmt.Fprintf(p.err, "%s (%s)? [y/N] ", term.Clean(what), where)
	line, _ := bufio.NewReader(p.in).ReadString('\n') // an end of input is a no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return term.Exitf(term.ExitError, "not confirmed; nothing was done")
}
