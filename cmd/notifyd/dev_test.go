package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/backup"
	"github.com/notifyd/notifyd/pkg/term"
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
	c.cmd = exec.CommandContext(t.Context(), os.Args[0], append([]string{"dev", "--port", "0", "--ready-timeout", "10m", "--set", "log.sync=false"}, args...)...)
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
	if c.field(t, "Data") != "~/share/notifyd/dev" || !strings.Contains(c.banner, `"dev" written and chosen`) || !strings.Contains(c.banner, "105 users: ann") {
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
	cs, err := term.OpenContexts(getenv)
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
	if code != term.ExitUnavailable || out != "" || !strings.Contains(errs, fmt.Sprintf("dev, pid %d, since", c.cmd.Process.Pid)) ||
		!strings.Contains(errs, x.Server) || !strings.Contains(errs, "data_dir_locked") || !strings.Contains(errs, fmt.Sprint("kill ", c.cmd.Process.Pid)) {
		t.Errorf("a second start: exit %d, %s%s", code, out, errs)
	}
	if _, errs, code = notifyd(t, environment(home), "dev", "--fresh"); code != term.ExitUnavailable || !strings.Contains(errs, "data_dir_locked") {
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
// TestBackupOfDev does what "notifyctl backup" says of a backup with Dev: the data
// goes into the folder data below the new one.
func TestBackupOfDev(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := dev(t, home)
	cl := c.client(t, filepath.Join(home, "share", "notifyd", "dev", "token"))
	id := send(t, cl)
	saved := filepath.Join(t.TempDir(), "saved")
	var raw bytes.Buffer
	if _, err := cl.Backup(t.Context(), &raw); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(saved, raw.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := c.signal(t, os.Interrupt, time.Minute); code != 0 {
		t.Fatalf("exit %d", code)
	}
	if m, err := backup.Verify(t.Context(), &raw); err != nil || !m.Dev {
		t.Fatalf("the backup does not say that it is of dev: %+v, %v", m, err)
	}
	home, dir := t.TempDir(), filepath.Join(t.TempDir(), "new")
	if _, errs, code := notifyd(t, environment(home), "restore", saved, "--data-dir", filepath.Join(dir, "data")); code != 0 {
		t.Fatal(errs)
	}
	c = dev(t, home, "--data-dir", dir)
	if got, err := c.client(t, filepath.Join(dir, "token")).Notification(t.Context(), id); err != nil || got.NotificationID != id {
		t.Errorf("%+v, %v", got, err)
	}
	if code := c.signal(t, os.Interrupt, time.Minute); code != 0 {
		t.Fatalf("exit %d", code)
	}
}

func TestEphemeral(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := dev(t, home, "--ephemeral", "--context", "")
	if dir := c.field(t, "Data"); !strings.HasPrefix(dir, "~/tmp/") || !strings.Contains(c.banner, "temporary") {
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

// called sends a notification and waits until its call is under way.
func called(t *testing.T, cl *api.Client) {
	t.Helper()
	id := send(t, cl)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C { // until the call is under way
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
}

// TestDrainIsBounded: a stop waits for a provider that does not answer no longer
// than workers.drain, and is a good end.
func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := dev(t, home, "--latency", "10m", "--context", "", "--set", "workers.drain=1s")
	called(t, c.client(t, filepath.Join(home, "share", "notifyd", "dev", "token")))
	if code := c.signal(t, syscall.SIGTERM, time.Minute); code != 0 {
		t.Errorf("exit %d after a minute at most, want 0\n%s", code, c.errs)
	}
}

// TestSecondSignal: the first one waits for a provider that does not answer,
// the second one does not.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := dev(t, home, "--latency", "10m", "--context", "", "--set", "workers.drain=10m")
	cl := c.client(t, filepath.Join(home, "share", "notifyd", "dev", "token"))
	called(t, cl)
	if code := c.signal(t, syscall.SIGTERM, time.Second); code != -1 {
		t.Fatalf("the first signal does not wait for the call: exit %d\n%s", code, c.errs)
	}
	// One that comes soon after the first was heard, counts as the same order.
	code := -1
	for range 60 {
		if code = c.signal(t, syscall.SIGTERM, time.Second); code != -1 {
			break
		}
	}
	if code != term.ExitTerminated {
		t.Errorf("the second signal: exit %d, want %d\n%s", code, term.ExitTerminated, c.errs)
	}
}

// TestDevBesideDev: a second server beside the first leaves the first one's
// context alone, and takes its own with it; a taken port is named.
func TestDevBesideDev(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := dev(t, home)
	names := func() (current string, all []string) {
		t.Helper()
		cs, err := term.OpenContexts(func(name string) string {
			for _, kv := range environment(home) {
				if k, v, _ := strings.Cut(kv, "="); k == name {
					return v
				}
			}
			return ""
		})
		if err != nil {
			t.Fatal(err)
		}
		if x, err := cs.Get("dev"); err != nil || x.Server != c.field(t, "API") {
			t.Errorf("context dev is %+v, %v, want that of %s", x, err, c.field(t, "API"))
		}
		return cs.Current(), cs.Names()
	}
	beside := dev(t, home, "--ephemeral")
	_, port, _ := strings.Cut(strings.TrimPrefix(beside.field(t, "API"), "http://"), ":")
	if current, all := names(); current != "dev" || len(all) != 2 || all[1] != "dev-"+port {
		t.Errorf("%s of %v is chosen, want dev of dev and dev-%s", current, all, port)
	}
	if !strings.Contains(beside.banner, "notifyctl context use dev-"+port) || !strings.Contains(beside.banner, "notifyctl --context dev-"+port+" send") {
		t.Errorf("banner:\n%s", beside.banner)
	}
	if code := beside.signal(t, syscall.SIGTERM, time.Minute); code != 0 {
		t.Errorf("exit %d\n%s", code, beside.errs)
	}
	if current, all := names(); current != "dev" || len(all) != 1 {
		t.Errorf("it left %s of %v", current, all)
	}

	_, port, _ = strings.Cut(strings.TrimPrefix(c.field(t, "API"), "http://"), ":")
	_, errs, code := notifyd(t, environment(t.TempDir()), "dev", "--ephemeral", "--port", port)
	if code != term.ExitUnavailable || !strings.Contains(errs, "port "+port+" (the API) is taken") || !strings.Contains(errs, "notifyd dev --port 0") {
		t.Errorf("a taken port: exit %d, %s", code, errs)
	}

	// Killed, it leaves its lock and its holder: no obstacle.
	id := send(t, c.client(t, filepath.Join(home, "share", "notifyd", "dev", "token")))
	_ = c.signal(t, syscall.SIGKILL, time.Minute)
	c = dev(t, home)
	cl := c.client(t, filepath.Join(home, "share", "notifyd", "dev", "token"))
	terminal(t, cl, id)

	// What its user changed of a demo user stays, what is missing is added.
	eve, err := cl.User(t.Context(), "eve")
	if err != nil {
		t.Fatal(err)
	}
	eve.OptOut = []string{"digest"}
	if _, err := cl.PutUser(t.Context(), eve); err != nil {
		t.Fatal(err)
	}
	if code := c.signal(t, syscall.SIGTERM, time.Minute); code != 0 {
		t.Fatalf("exit %d\n%s", code, c.errs)
	}
	c = dev(t, home)
	if got, err := c.client(t, filepath.Join(home, "share", "notifyd", "dev", "token")).User(t.Context(), "eve"); err != nil || len(got.OptOut) != 1 || got.OptOut[0] != "digest" {
		t.Errorf("a restart made eve %+v, %v", got, err)
	}
	if code := c.signal(t, syscall.SIGTERM, time.Minute); code != 0 {
		t.Fatalf("exit %d\n%s", code, c.errs)
	}
}

// TestProgress: a quick start says nothing, a slow one what it is at.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var quick, slow output
		q, s := newProgress(&quick), newProgress(&slow)
		q.setStep("opening the store")
		s.setStep("opening the store")
		q.stop()
		time.Sleep(progressAfter + time.Millisecond) // of the bubble
		q.setStep("never said")
		s.setStep("reading the log")
		s.stop()
		s.setStep("never said")
		if quick.String() != "" {
			t.Errorf("a quick start says %q", quick.String())
		}
		if want := "notifyd dev is starting: opening the store ...\nnotifyd dev is starting: reading the log ...\n"; slow.String() != want {
			t.Errorf("a slow start says %q, want %q", slow.String(), want)
		}
	})
}
