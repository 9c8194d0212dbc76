package main

import (
	"testing"

	"github.com/notifyd/notifyd/pkg/backup"
)

func TestRestoreLine(t *testing.T) {
	t.Parallel()
	f := func(name string, dev bool, want string) {
		t.Helper()
		if got := restoreLine(name, backup.Manifest{Dev: dev}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	f("nightly.backup", false, "notifyd restore nightly.backup --data-dir DIR")
	f("nightly.backup", true, "notifyd restore nightly.backup --data-dir DIR/data && notifyd dev --data-dir DIR")
	f("of monday", false, "notifyd restore 'of monday' --data-dir DIR")
	f("-x", false, "notifyd restore ./-x --data-dir DIR")
}
