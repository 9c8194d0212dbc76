package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// Sizes of the floods. The API accepts at most 16,384 connections, so idleConns is a larger number.
// The API reads at most 1,024 bodies at the same time, so slowBodies is a larger number, too.
const (
	idleConns  = 17_000
	slowBodies = 1_100
)

// floodTries use up all connections of the server, or all bodies that it reads at the same time.
// They send no token. Then another client sends a request, and the server must answer it. The last
// try stops the server during callbacks that would never end.
func floodTries(r *world) {
	slow := func(name, path string, then request, want int) {
		r.try(name, fmt.Sprintf("sends the first byte of %d bodies", slowBodies), fmt.Sprintf("that the complete request of another client is answered with %d within 5 s", want), func(ctx context.Context) string {
			text := "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\nA"
			stop, err := flood(ctx, slowBodies, text)
			defer stop()
			rig.Ok(err)
			return r.answersInTime(then, want)
		})
	}
	form := map[string]string{"Content-Type": "application/x-www-form-urlencoded"}
	slow("slow receipts", "/v1/receipts/twilio", request{method: "POST", url: "/v1/receipts/twilio", body: "x=y", header: form}, 0)
	slow("slow forms", "/ui/sign-in", request{url: "/ui/sign-in"}, 200)
	slow("slow receipts, a caller", "/v1/receipts/twilio", request{url: "/readyz"}, 200)
	r.try("idle connections", fmt.Sprintf("opens %d connections and sends one request on each", idleConns), "that the request of another client is answered within 5 s", func(ctx context.Context) string {
		stop, err := flood(ctx, idleConns, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		defer stop()
		rig.Ok(err)
		r.client.CloseIdleConnections()
		return r.answersInTime(request{url: "/healthz"}, 200)
	})
	r.try("stop", "answers callbacks with 101 while the server is stopped", "that it ends within 30 s", func(ctx context.Context) string {
		url := "https://" + nameFor(publicV4) + "/raw/101"
		for range 4 {
			name := r.mustCreateCaller(url)
			r.must(request{method: "POST", url: "/v1/triggers", token: r.keys.token(name, "trigger"), body: triggerOf(url)})
		}
		began := r.canary.requests("/raw/101")
		eventually(ctx, 5*time.Second, func() bool { return r.canary.requests("/raw/101") >= began+4 })
		server := r.procs["serve"]
		rig.Ok(server.Signal(syscall.SIGTERM))
		if !eventually(ctx, 30*time.Second, server.Gone) {
			rig.Ok(server.Kill())
			return "it still runs"
		}
		r.restart(ctx, "serve")
		return ""
	})
}

// answersInTime sends a request as another client. It returns "" if the server answers within 5 s
// with the expected status (want), and a description otherwise. If want is 0, any answer is good
// except a 503 with "busy" in its body.
func (r *world) answersInTime(q request, want int) string {
	began := time.Now()
	a, err := r.asked(q)
	switch took := time.Since(began); {
	case err != nil:
		return "no answer: " + err.Error()
	case took > 5*time.Second:
		return fmt.Sprintf("an answer after %s", took)
	case want == 0 && a.status == http.StatusServiceUnavailable && strings.Contains(a.body, "busy"), want != 0 && a.status != want:
		return a.String()
	}
	return ""
}

// flood opens n connections to the API and writes the given text on each of them. The connections
// stay open until the returned function is called.
func flood(ctx context.Context, n int, text string) (stop func(), err error) {
	conns := make([]net.Conn, 0, n)
	stop = func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	for i := range n {
		// Use four source addresses: the server gives at most half of its slots to one source.
		d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, byte(1+i%4), 1)}}
		c, err := d.DialContext(ctx, "tcp", apiAddr)
		if err != nil {
			return stop, fmt.Errorf("cannot open connection %d to the API: %w", i, err)
		}
		conns = append(conns, c)
		if _, err := c.Write([]byte(text)); err != nil {
			return stop, fmt.Errorf("cannot write to connection %d to the API: %w", i, err)
		}
	}
	return stop, nil
}

// fileTries check the files that the servers wrote.
func (r *world) fileTries() {
	secretIn := func(text string) string {
		for what, secret := range map[string]string{"a text that was sent": "alices-secret-text", "a token": r.keys.token("op", "operate")[:60], "a signing secret": "whsec_", "an API key": "SG.attack"} {
			if strings.Contains(text, secret) {
				return what
			}
		}
		return ""
	}
	r.try("modes", "looks at the files of the data folder, which other users may enter", "that other users may neither read nor write any file", func(context.Context) string {
		n := 0
		var open string
		err := filepath.WalkDir(r.file("data"), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || path == r.file("data") {
				return nil // removed since the listing, or the folder that this test created
			}
			if err != nil {
				return err
			}
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if n++; err == nil && info.Mode().Perm()&0o007 != 0 && !d.IsDir() {
				open = path + " " + info.Mode().String()
			}
			return err
		})
		rig.Ok(err)
		if n < 10 {
			panic(fmt.Errorf("the data folder has only %d entries, but must have 10 or more", n))
		}
		return open
	})
	r.try("logs", "looks for secrets in the logs, which are at level debug", "that none is there", func(context.Context) string {
		for name, p := range r.procs {
			b := rig.Must(os.ReadFile(p.log))
			if what := secretIn(string(b)); what != "" {
				return what + " in the log of " + name
			}
		}
		return ""
	})
	r.try("metrics", "looks for secrets and callers in the metrics", "that none is there", func(context.Context) string {
		return secretIn(r.must(request{url: "http://127.0.0.1:" + adminPort + "/metrics"}).body)
	})
	r.try("arguments", "looks for secrets in the arguments of the processes", "that none is there", func(context.Context) string {
		for _, p := range r.procs {
			b := rig.Must(os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.Pid())))
			if bytes.Contains(b, []byte("whsec_")) || bytes.Contains(b, []byte("SG.")) {
				return string(b)
			}
		}
		return ""
	})
	r.try("bundle", "reads the debug bundle that operators send when they ask for help", "that no secret is in the bundle", func(context.Context) string {
		return secretIn(r.must(request{url: "/v1/ops/debug", token: r.keys.token("op", "operate")}).body)
	})
}
