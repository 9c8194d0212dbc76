package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cli"
)

// child is the program in a process of its own.
type child struct {
	cmd    *exec.Cmd
	banner string // until "Try:"
	errs   *output
	exited chan error
}

// environment of a process whose home is dir.
func environment(dir string) []string {
	return []string{
		"HOME=" + dir, "XDG_CONFIG_HOME=" + filepath.Join(dir, "config"), "XDG_STATE_HOME=" + filepath.Join(dir, "state"),
		"XDG_DATA_HOME=" + filepath.Join(dir, "share"), "TMPDIR=" + filepath.Join(dir, "tmp"),
	}
}

// dev starts "notifyd dev" and waits for its banner.
func dev(t *testing.T, home string, args ...string) *child {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(home, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := &child{errs: &output{}, exited: make(chan error, 1)}
	c.cmd = exec.CommandContext(t.Context(), os.Args[0], append([]string{"dev", "--port", "0", "--set", "log.sync=false"}, args...)...)
	c.cmd.Env = append(environment(home), mainEnv+"=1")
	c.cmd.Stderr = c.errs
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		c.banner += line
		if err != nil {
			t.Fatalf("no banner: %v\n%s%s", errors.Join(err, c.cmd.Wait()), c.banner, c.errs)
		}
		if strings.HasPrefix(line, "Try:") {
			break
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		c.exited <- c.cmd.Wait()
	}()
	return c
}

// signal sends a signal and returns the exit code, or -1 when the process goes on.
func (c *child) signal(t *testing.T, s os.Signal, wait time.Duration) int {
	t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.exited:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(wait):
		return -1
	}
}

// field is a value of the banner.
func (c *child) field(t *testing.T, name string) string {
	t.Helper()
	for line := range strings.Lines(c.banner) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			return f[1]
		}
	}
	t.Fatalf("no %s in the banner:\n%s", name, c.banner)
	return ""
}

func (c *child) client(t *testing.T, tokenFile string) *api.Client {
	t.Helper()
	tr := api.NewTransport(0)
	t.Cleanup(tr.CloseIdleConnections)
	return &api.Client{
		BaseURL: c.field(t, "API"), HTTPClient: &http.Client{Transport: tr},
		Token: func(context.Context) (string, error) {
			b, err := os.ReadFile(tokenFile)
			return strings.TrimSpace(string(b)), err
		},
	}
}

func send(t *testing.T, cl *api.Client) string {
	t.Helper()
	sent, err := cl.Send(t.Context(), api.Notification{
		Channel: "push", Category: "transactional", To: api.Receiver{UserID: "ann"}, Content: api.Content{Title: "Hello", Body: "It works"},
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	return sent.NotificationID
}

// TestDev follows a dev server through its life: banner, context, a second
// start beside it, a graceful stop that finishes the work, and a wipe.
func TestDev(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	data := filepath.Join(home, "share", "notifyd", "dev")
	c := dev(t, home)
	if kafka := c.field(t, "Kafka"); !strings.Contains(c.banner, "kcat -b "+kafka+" -C -t notifications-push") {
		t.Errorf("banner:\n%s", c.banner)
	}
	if c.field(t, "Data") != data || !strings.Contains(c.banner, `"dev" written and chosen`) || !strings.Contains(c.banner, "105 users: ann") {
		t.Errorf("banner:\n%s", c.banner)
	}
	getenv := func(name string) string {
		for _, kv := range environment(home) {
			if k, v, _ := strings.Cut(kv, "="); k == name {
				return v
			}
		}
		return ""
	}
	cs, err := cli.OpenContexts(getenv)
	if err != nil {
		t.Fatal(err)
	}
	x, err := cs.Get(cs.Current())
	if err != nil || x.Server != c.field(t, "API") || !strings.HasPrefix(c.field(t, "Inbox"), x.Simulators) || x.Simulators == "" {
		t.Errorf("context %+v, %v", x, err)
	}
	if info, err := os.Stat(x.TokenFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file: %v, %v", info, err)
	}
	id := send(t, c.client(t, x.TokenFile))

	out, errs, code := notifyd(t, environment(home), "dev", "--port", "0")
	if code != 0 || out != "" || !strings.Contains(errs, "already running") || !strings.Contains(errs, x.Server) {
		t.Errorf("a second start: exit %d, %s%s", code, out, errs)
	}
	if _, errs, code = notifyd(t, environment(home), "dev", "--fresh"); code != cli.ExitUsage || !strings.Contains(errs, "stop it first") {
		t.Errorf("a wipe beside it: exit %d, %s", code, errs)
	}
	if code := c.signal(t, syscall.SIGTERM, time.Minute); code != 0 {
		t.Fatalf("SIGTERM: exit %d\n%s", code, c.errs)
	}
	if _, err := os.Stat(filepath.Join(data, "running.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("running.json is left: %v", err)
	}

	// What was sent just before the stop is delivered.
	c = dev(t, home)
	st, err := c.client(t, x.TokenFile).Notification(t.Context(), id)
	if err != nil || st.Status != "DELIVERED" {
		t.Errorf("after a graceful stop: %+v, %v", st, err)
	}
	if code := c.signal(t, syscall.SIGINT, time.Minute); code != 0 {
		t.Fatalf("SIGINT: exit %d\n%s", code, c.errs)
	}

	mine := filepath.Join(data, "mine.txt")
	if err := os.WriteFile(mine, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	c = dev(t, home, "--fresh", "--seed", "none", "--context", "")
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("--fresh removed a file that is not ours: %v", err)
	}
	if strings.Contains(c.banner, "Seeded") || strings.Contains(c.banner, "Context") {
		t.Errorf("banner:\n%s", c.banner)
	}
	if page, err := c.client(t, filepath.Join(data, "token")).UserNotifications(t.Context(), "ann", "", 0); err != nil || len(page.Items) != 0 {
		t.Errorf("--fresh kept %+v, %v", page.Items, err)
	}
	if code := c.signal(t, syscall.SIGTERM, time.Minute); code != 0 {
		t.Fatalf("exit %d\n%s", code, c.errs)
	}
}

// TestEphemeral leaves nothing.
func TestEphemeral(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := dev(t, home, "--ephemeral", "--context", "")
	if dir := c.field(t, "Data"); !strings.HasPrefix(dir, filepath.Join(home, "tmp")) || !strings.Contains(c.banner, "temporary") {
		t.Errorf("data in %s\n%s", dir, c.banner)
	}
	if code := c.signal(t, syscall.SIGTERM, time.Minute); code != 0 {
		t.Fatalf("exit %d\n%s", code, c.errs)
	}
	for _, dir := range []string{"tmp", "share", "config", "state"} {
		if left, err := os.ReadDir(filepath.Join(home, dir)); len(left) > 0 {
			t.Errorf("%s holds %v, %v", dir, left, err)
		}
	}
}

// TestSecondSignal: the first one waits for a provider that does not answer,
// the second one does not.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := dev(t, home, "--latency", "10m", "--context", "")
	cl := c.client(t, filepath.Join(home, "share", "notifyd", "dev", "token"))
	id := send(t, cl)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C { // until the call is under way
		line, err := cl.Timeline(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if len(line.Events) > 0 && line.Events[len(line.Events)-1].Type == "claimed" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it is not called: %+v", line.Events)
		}
	}
	if code := c.signal(t, syscall.SIGTERM, time.Second); code != -1 {
		t.Fatalf("the first signal does not wait for the call: exit %d\n%s", code, c.errs)
	}
	if code := c.signal(t, syscall.SIGTERM, 10*time.Second); code != cli.ExitTerminated {
		t.Errorf("the second signal: exit %d, want %d\n%s", code, cli.ExitTerminated, c.errs)
	}
}
