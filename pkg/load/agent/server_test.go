package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// controller replaces the real controller. A test uses it to send single requests to the first agent of
// a world.
type controller struct {
	*world
	client *http.Client
}

func (w *world) controller() *controller {
	c := &controller{w, &http.Client{Transport: &http.Transport{DialContext: w.dial}}}
	w.t.Cleanup(c.client.CloseIdleConnections)
	return c
}

func (c *controller) do(ctx context.Context, method, path string, body any) *http.Response {
	c.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.names[0]+path, strings.NewReader(string(b)))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// begun starts a run of a minute at 100/s and returns the events of the agent. The run has begun when
// begun returns. After that the controller sends nothing.
func (c *controller) begun(ctx context.Context) *json.Decoder {
	c.t.Helper()
	s := scenario(100, time.Minute)
	job := c.options(&s).Job
	job.Protocol, job.Segment = Protocol, load.Segment{I: 1, N: 1}
	events := json.NewDecoder(c.do(ctx, http.MethodPost, runsPath, &job).Body)
	var id string
	for {
		var e Event
		if err := events.Decode(&e); err != nil {
			c.t.Fatal(err)
		}
		id += e.Run
		if e.Ready != nil {
			break
		}
	}
	if resp := c.do(ctx, http.MethodPut, runsPath+"/"+id, &Orders{At: time.Now().UnixNano()}); resp.StatusCode != http.StatusNoContent {
		c.t.Fatal(resp.Status)
	}
	return events
}

// TestControllerIsSilent checks that the agent stops after 3 s without a request from the controller,
// and that its last event says why.
func TestControllerIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		events, began := w.controller().begun(t.Context()), time.Now()
		var e Event
		for e.Failed == nil {
			if e = (Event{}); events.Decode(&e) != nil {
				t.Fatal("the answer ended without a word")
			}
		}
		if e.Failed.Code != "agent_stopped" || !strings.Contains(e.Failed.Detail, "the controller was silent for 3 s") || time.Since(began) > 4*time.Second {
			t.Errorf("after %v: %+v", time.Since(began), e.Failed)
		}
		if n := len(w.agents["a"].sent()); n < 250 || n > 310 {
			t.Errorf("it sent %d messages of 100 a second in 3 s", n)
		}
	})
}

// TestControllerDies checks that the agent stops at once when the connection ends, and that it then
// accepts the next run.
func TestControllerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		a, c := w.agents["a"], w.controller()
		ctx, die := context.WithCancel(t.Context())
		c.begun(ctx)
		time.Sleep(1005 * time.Millisecond)
		die()
		time.Sleep(time.Second)
		if n := len(a.sent()); n < 99 || n > 105 {
			t.Errorf("it sent %d messages of 100 a second in 1 s", n)
		}
		ctx, die = context.WithCancel(t.Context())
		c.begun(ctx)
		die()
	})
}

// TestRefusals checks which requests an agent refuses: a second run at the same time, another version
// of the protocol, a scenario that it cannot send, orders for an unknown run, and requests that a web
// page could send. The error says what is wrong.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		w.agents["a"].Loopback = true
		ctx, die := context.WithCancel(t.Context())
		defer die()
		c := w.controller()
		s := scenario(1, time.Second)
		good := c.options(&s).Job
		good.Protocol, good.Segment = Protocol, load.Segment{I: 1, N: 1}
		refused := func(job Start, want string) {
			t.Helper()
			resp := c.do(ctx, http.MethodPost, runsPath, &job)
			if err := refusalError(resp, json.NewDecoder(resp.Body)); !strings.Contains(err.Error(), want) || resp.StatusCode < 400 {
				t.Errorf("%s: %v, not %q", resp.Status, err, want)
			}
		}
		job := good
		job.Protocol++
		refused(job, "protocol: is version 2, but the agent uses version 1")
		job = good
		job.Scenario = "name: [x"
		refused(job, "yaml")
		job.Scenario = "name: x\nserver: {mode: pipeline}\nsteps: [{rate: 1, duration: 1s}]"
		refused(job, "duration")
		job.Scenario = "name: x\nduration: 1s\nserver: {mode: pipeline}\nsteps: [{rate: 1}]"
		refused(job, `server.mode: is "pipeline"`)
		job.Scenario = "name: x\nduration: 1s\nsteps: [{arrival: {shape: trace, file: /etc/passwd}}]"
		refused(job, "arrival.file: step http-single reads a trace from a file, but agents do not have the file")
		c.begun(ctx)
		refused(good, "does another run")

		resp := c.do(ctx, http.MethodPut, runsPath+"/guessed", &Orders{Stop: true})
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("orders for a run by a guessed name: %s", resp.Status)
		}
		for name, change := range map[string]func(*http.Request){
			"another host":  func(r *http.Request) { r.Host = "evil.example:1" },
			"a page's":      func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") },
			"a form's text": func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") },
		} {
			req := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:1"+runsPath, strings.NewReader("{}"))
			req.Header.Set("Content-Type", "application/json")
			change(req)
			rec := httptest.NewRecorder()
			w.agents["a"].Handler().ServeHTTP(rec, req)
			if rec.Code != http.StatusForbidden && rec.Code != http.StatusUnsupportedMediaType {
				t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
			}
		}
	})
}

// TestToken checks that, if Server.Check is set, only a token that Check accepts can start a run.
func TestToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		w.agents["a"].Check = func(_ context.Context, token string) error {
			if token != "good" {
				return &notify.Error{Kind: notify.KindForbidden, Code: "scope_missing", Msg: "the token lacks the scope operate"}
			}
			return nil
		}
		for token, want := range map[string]string{"": "no_token", "bad": "scope_missing", "good": ""} {
			s := scenario(100, 2*time.Second)
			o := w.options(&s)
			o.Token = func(context.Context) (string, error) { return token, nil }
			fleet, err := Dial(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			r, err := load.New(s, load.Config{Target: &fake{}, Ledger: w.seen, Remote: fleet})
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.Run(t.Context())
			e, _ := errors.AsType[*notify.Error](err)
			if (want == "") != (err == nil) || err != nil && (e == nil || e.Code != want || !strings.Contains(err.Error(), "agent 127.0.0.1:1: ")) {
				t.Errorf("token %q: %v, not %q", token, err, want)
			}
		}
	})
}

// TestMutualTLS checks that an agent with certificates accepts only a controller with a certificate of
// the same authority. It refuses a controller without a certificate, and a controller with a
// certificate of another authority. A controller also refuses an agent of another authority.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, other} {
		if err := WriteCertificates(d, []string{"127.0.0.1", "localhost"}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if err := WriteCertificates(dir, []string{"127.0.0.1"}, time.Now()); err == nil {
		t.Error("certificates were overwritten")
	}
	in := func(dir, file string) string { return filepath.Join(dir, file) }
	listen, err := ServerTLS(in(dir, AgentFile), in(dir, AgentKeyFile), in(dir, CAFile))
	if err != nil {
		t.Fatal(err)
	}
	a := httptest.NewUnstartedServer((&Server{}).Handler())
	a.Config.ErrorLog = log.New(io.Discard, "", 0)
	a.TLS = listen
	a.StartTLS()
	defer a.Close()
	for name, c := range map[string]struct {
		ca, cert string // folders of the certificates; cert "": the controller has no certificate
		good     bool
	}{
		"its own": {dir, dir, true}, "no certificate": {dir, "", false},
		"another authority's certificate": {dir, other, false}, "another authority's agent": {other, dir, false},
	} {
		cert, key := "", ""
		if c.cert != "" {
			cert, key = in(c.cert, ControllerFile), in(c.cert, ControllerKeyFile)
		}
		connect, err := ClientTLS(in(c.ca, CAFile), cert, key)
		if err != nil {
			t.Fatal(err)
		}
		fleet, err := Dial(t.Context(), Options{Agents: []string{a.Listener.Addr().String()}, TLS: connect})
		if (err == nil) != c.good || err != nil && notify.KindOf(err) != notify.KindUnavailable {
			t.Errorf("%s: %v", name, err)
		}
		if fleet != nil {
			fleet.Close()
		}
	}
	// A controller cannot use the certificate of an agent.
	connect, err := ClientTLS(in(dir, CAFile), in(dir, AgentFile), in(dir, AgentKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), Options{Agents: []string{a.Listener.Addr().String()}, TLS: connect}); err == nil {
		t.Error("an agent passes for a controller")
	}
	if _, err := Dial(t.Context(), Options{Agents: []string{"192.0.2.1:7431"}}); err == nil || !strings.Contains(err.Error(), "agents on other machines need TLS") {
		t.Errorf("elsewhere without TLS: %v", err)
	}
}
