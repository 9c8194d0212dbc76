package main

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/term"
)

// TestUIWithoutTerminal: it says what gives the same, and writes no escapes.
func TestUIWithoutTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "http://127.0.0.1:1")
	w.env["TERM"] = "xterm-256color"
	for _, terminal := range []bool{false, true} { // of standard input; standard output is none
		w.terminal = terminal
		out, errs, code := w.ctl(t.Context(), "ui")
		if code != term.ExitUsage || out != "" || strings.Contains(errs, "\x1b") {
			t.Errorf("exit %d, %q, %q", code, out, errs)
		}
		for _, c := range []string{"notifyctl rates", "notifyctl doctor", "notifyctl dlq ls", "notifyctl job ls", "notifyctl circuit ls", "notifyctl schedule ls"} {
			if !strings.Contains(errs, c) {
				t.Errorf("%q is not named:\n%s", c, errs)
			}
		}
	}
}

func TestReadOnlyToken(t *testing.T) {
	t.Parallel()
	jwt := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".sig"
	}
	for token, can := range map[string]bool{
		jwt(`{"scope":"send operate"}`): true, jwt(`{"scope":"observe read"}`): false, jwt(`{"scope":"operates"}`): false,
		jwt(`{}`): false, "opaque": true, "a.b.c": true, jwt(`[]`): true, "": true,
	} {
		w := newWorld(t, "http://127.0.0.1:1")
		w.env["NOTIFYCTL_TOKEN"] = token
		p := &program{getenv: func(name string) string { return w.env[name] }}
		p.global.server = "http://127.0.0.1:1"
		tg, err := p.target()
		if err != nil {
			t.Fatal(err)
		}
		if why := readOnlyReason(t.Context(), &tg); (why == "") != can {
			t.Errorf("%q: %q", token, why)
		}
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	p := &program{}
	p.global.context, p.global.tokenFile = "prod eu", "t"
	if got, want := p.commandLine("dlq", "replay", "--where", ".code == \"5\""), `notifyctl --context='prod eu' --token-file=t dlq replay --where '.code == "5"'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for lang, utf8 := range map[string]bool{"C.UTF-8": true, "de_DE.utf8": true, "C": false, "": false} {
		if got := utf8Locale(func(name string) string { return map[string]string{"LANG": lang}[name] }); got != utf8 {
			t.Errorf("LANG=%s: %v", lang, got)
		}
	}
	if utf8Locale(func(name string) string { return map[string]string{"LC_ALL": "C", "LANG": "C.UTF-8"}[name] }) {
		t.Error("LC_ALL does not win")
	}
}

// TestUICommandsExist: what is named can be typed.
func TestUICommandsExist(t *testing.T) {
	t.Parallel()
	root := newRoot(&program{})
	for _, line := range uiCommands {
		line, _, _ = strings.Cut(line, "  (")
		for c := range strings.SplitSeq(line, ";") {
			words := strings.Fields(strings.TrimSpace(c))[1:]
			found, rest, err := root.Find(words)
			if err != nil || found == root || len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				t.Errorf("%s: %v, %v", c, err, rest)
			}
		}
	}
}
