package main

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/simulator"
)

// TestPaged: on a terminal a list goes through the pager; elsewhere, as JSON and where
// there is no such pager it is printed.
func TestPaged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		terminal            bool
		output, pager, want string
	}{
		{true, "table", "sed s/^/paged:/", "paged:a list\n"},
		{false, "table", "sed s/^/paged:/", "a list\n"},
		{true, "json", "sed s/^/paged:/", "a list\n"},
		{true, "table", "true", ""}, // ends before it has read
		{true, "table", "/nowhere/pager 2>/dev/null", "a list\n"},
	} {
		var out bytes.Buffer
		p := &program{out: &out, err: &out, outTerminal: c.terminal, getenv: func(name string) string {
			return map[string]string{"PAGER": c.pager}[name]
		}}
		p.global.output = c.output
		if err := p.runPaged(t.Context(), func() error { _, err := fmt.Fprintln(p.out, "a list"); return err }); err != nil || out.String() != c.want {
			t.Errorf("%+v: %q, %v", c, out.String(), err)
		}
	}
}

// TestCallIsShown: an engineer sees what a callback carried, and nothing in it reaches
// the terminal as a command.
func TestCallIsShown(t *testing.T) {
	t.Parallel()
	var c simulator.Call
	c.Attempt, c.Bytes = 2, 5000
	var out strings.Builder
	printCall(&out, &c)
	if !strings.Contains(out.String(), "no longer kept") {
		t.Error(out.String())
	}
	c.Content = &simulator.CallContent{Method: "POST", URL: "/hook?a=1", Header: http.Header{"Webhook-Id": {"trg_1"}, "X-B": {"1", "2"}}, Body: "{\n\"a\":\"\x1b[31m\"}", Cut: true}
	out.Reset()
	printCall(&out, &c)
	want := "\nattempt 2: POST /hook?a=1\n  Webhook-Id: trg_1\n  X-B: 1\n  X-B: 2\n  {\n  \"a\":\"\\u001b[31m\"}\n  (5,000 bytes; the rest is not kept)\n"
	if out.String() != want {
		t.Errorf("%q\nwant %q", out.String(), want)
	}
}
