package main

import (
	"errors"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// addAdvice adds next steps to an error of command c. If the error already has next steps, addAdvice
// does not change it, because the command that made the error knows more.
func addAdvice(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	e, ours := errors.AsType[*term.Error](err)
	if ours && len(e.Next) > 0 {
		return err
	}
	var next []string
	code := ""
	if ne, ok := errors.AsType[*notify.Error](err); ok {
		code = ne.Code
	}
	switch {
	case code == "listen":
		next = []string{"notifyd " + c.Name() + " --set api.listen=127.0.0.1:PORT   (or api.admin, log.listen; port 0: any)"}
	case code == "data_dir_locked", code == "store_locked":
		next = []string{"stop that process, or give this one another folder: --data-dir DIR"}
	case code == "data_dir":
		next = []string{"--data-dir DIR, a folder that can be written to"}
	case code == "store_full":
		next = []string{"make room on the volume of the data folder, and start notifyd again: every request that was answered with 201 is kept"}
	case c.Name() == "serve" && (code == "bad_key" || code == "secret_exposed" || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
		next = []string{
			"correct the file, or the setting that names it (notifyd config print --origin)",
			"under systemd, its LoadCredential= line: systemctl cat notifyd (docs/production.md, step 2)",
		}
	case term.ExitCode(err) == term.ExitUsage:
		next = []string{c.CommandPath() + " --help"}
	}
	if len(next) == 0 {
		return err
	}
	if ours {
		return &term.Error{Exit: e.Exit, Err: e.Err, Next: next}
	}
	return &term.Error{Exit: term.ExitCode(err), Err: err, Next: next}
}
