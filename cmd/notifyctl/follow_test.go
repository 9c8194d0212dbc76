package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/term"
)

// TestInterruptWhileAJobStarts: Ctrl-C comes when the server has been asked for the
// job and has not answered. The answer is awaited, and the job paused: else it would
// go on, and nobody knew of it.
func TestInterruptWhileAJobStarts(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancelCause(t.Context())
	paused := false
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, status int, body string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintln(w, body)
	}
	mux.HandleFunc("POST /v1/ops/plans", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, `{"spec":{"kind":"replay"},"digest":"abcdef0123456789","entries":3,"send":3}`)
	})
	mux.HandleFunc("POST /v1/ops/jobs", func(w http.ResponseWriter, r *http.Request) {
		interrupt(&signalStop{syscall.SIGINT, term.ExitInterrupt})
		if r.Context().Err() == nil { // started, whatever became of who asked
			answer(w, http.StatusCreated, `{"job_id":"job_1","kind":"replay","state":"running","planned":3}`)
		}
	})
	mux.HandleFunc("POST /v1/ops/jobs/job_1", func(w http.ResponseWriter, _ *http.Request) {
		paused = true
		answer(w, http.StatusOK, `{"job_id":"job_1","kind":"replay","state":"paused","planned":3,"position":1}`)
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	var out, said bytes.Buffer
	home := t.TempDir()
	p := &program{out: &out, err: &said, in: strings.NewReader(""), now: time.Now, getenv: func(name string) string {
		if name == "HOME" {
			return home
		}
		return ""
	}}
	code := run(ctx, p, []string{"--server", srv.URL, "dlq", "replay", "--all", "--yes"})
	if code != term.ExitInterrupt || !paused || !strings.Contains(said.String(), "job job_1 is paused at entry 1 of 3") {
		t.Errorf("exit %d, paused %v\n%s", code, paused, &said)
	}
}
