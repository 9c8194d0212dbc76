package app

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/secrets"
)

// holding returns the name of a file in a folder that contains a text; empty: no file does.
func holding(t *testing.T, dir, text string) (found string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(text)) {
			found = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestSecretsAreSealedAtRest(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	ctx := t.Context()
	keyFile := cfg.DataDir + ".secrets-key"
	log := &output{}
	open := func() (*Node, error) { return newNode(cfg, slog.New(slog.NewTextHandler(log, nil)), seams{}) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	started := func() *Node {
		t.Helper()
		n, err := open()
		must(err)
		return n
	}
	secretsOf := func(n *Node) string {
		t.Helper()
		c, _, err := n.st.callers.Get(ctx, "shop")
		must(err)
		if len(c.Secrets) != 1 {
			t.Fatalf("%+v", c)
		}
		return c.Secrets[0].Secret
	}
	level := func(n *Node) (string, string) {
		d := &doctor{n: n}
		d.lookAtSecrets(ctx)
		fs := d.Findings
		return fs[0].Level, fs[0].Detail + "; " + fs[0].Repair
	}

	// An earlier release has stored secrets in clear, of a user and of SeedCaller. The start that
	// makes the key file seals them.
	const body, seededBody = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	n := started()
	must(n.embedded.store.Callers().Put(ctx, engine.Caller{ID: "shop", Secrets: []engine.CallerSecret{{Secret: "whsec_" + body}}}))
	must(n.Close())
	must(os.Remove(keyFile))
	if holding(t, cfg.DataDir, body) == "" {
		t.Fatal("a secret in clear is not found: this test sees nothing")
	}
	n = started()
	if got := secretsOf(n); got != "whsec_"+body {
		t.Errorf("of an earlier release: %q", got)
	}
	c, _, err := n.embedded.store.Callers().Get(ctx, "shop")
	if err != nil || !c.Secrets[0].Sealed() {
		t.Errorf("stored as %+v, %v", c, err)
	}
	must(n.SeedCaller(ctx, "dev", []string{"http://127.0.0.1:9/"}, "whsec_"+seededBody))
	snapshot, err := n.Backup(ctx)
	must(err)
	if snapshot.manifest.Key != n.sealed.Keys().ID() {
		t.Errorf("the backup names key %q", snapshot.manifest.Key)
	}
	must(snapshot.Close())
	if l, detail := level(n); l != "ok" || !strings.Contains(detail, keyFile) {
		t.Errorf("doctor: %s %s", l, detail)
	}
	must(n.Close())
	if st, err := os.Stat(keyFile); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key file: %v, %v", st, err)
	}
	if file := holding(t, cfg.DataDir, seededBody); file != "" {
		t.Errorf("%s holds a secret", file)
	}

	// Without the key file the node does not start, and makes no new one.
	must(os.Rename(keyFile, keyFile+".kept"))
	_, err = open()
	for _, part := range []string{keyFile, "shop", "rotate-secret", "put the file back"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Fatalf("without the key file: %v, want %q", err, part)
		}
	}
	if _, err := os.Stat(keyFile); err == nil {
		t.Error("another key file was made")
	}
	keys, err := secrets.ReadKeys(keyFile + ".kept")
	must(err)
	if advice := KeyAdvice(cfg.DataDir, keys.ID()); !strings.Contains(advice, keys.ID()) || !strings.Contains(advice, keyFile) {
		t.Errorf("after a restore: %q", advice)
	}

	// With another key the node starts. The old secret signs nothing, and a new secret can be made.
	_, err = secrets.MakeKeys(keyFile)
	must(err)
	n = started()
	if l, detail := level(n); l != "fail" || !strings.Contains(detail, "another key: dev, shop") || !strings.Contains(detail, keyFile) {
		t.Errorf("doctor: %s %s", l, detail)
	}
	if got := secretsOf(n); !strings.HasPrefix(got, engine.SealedPrefix) || !strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("with another key: %q; log %s", got, log)
	}
	must(n.Close())

	// With the right key file again, nothing is lost. A key file that other users can read is
	// refused.
	must(os.Rename(keyFile+".kept", keyFile))
	if advice := KeyAdvice(cfg.DataDir, keys.ID()); advice != "" {
		t.Errorf("with the key: %q", advice)
	}
	n = started()
	if got := secretsOf(n); got != "whsec_"+body {
		t.Errorf("with the key file again: %q", got)
	}
	must(n.Close())
	must(os.Chmod(keyFile, 0o644))
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "secrets.key_file: "+keyFile+" can be accessed by everybody") {
		t.Errorf("a key file that everybody reads: %v", err)
	}
	if strings.Contains(log.String(), body) || strings.Contains(log.String(), seededBody) {
		t.Error("a secret is in the log")
	}
}

// If nothing can be written beside the data folder, the key file is inside the folder, and the
// doctor says what that means.
func TestKeyFileInsideTheDataFolder(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(MakeDataDir(cfg.DataDir))
	inside, err := secrets.MakeKeys(filepath.Join(cfg.DataDir, keyFileInside))
	must(err)
	n, err := newNode(cfg, slog.New(slog.DiscardHandler), seams{})
	must(err)
	d := &doctor{n: n}
	d.lookAtSecrets(ctx)
	fs := d.Findings
	if n.sealed.Keys().ID() != inside.ID() || fs[0].Level != "warn" || !strings.Contains(fs[0].Detail, "is in the data folder") {
		t.Errorf("%s: %+v", n.sealed.Keys().File(), fs)
	}
	must(n.Close())
}

// With servers nothing is sealed until a key file is named, and the doctor warns about that. A key
// file that is missing is not made, because every process needs the same one.
func TestSecretsOfServersAreSealedWithAKeyFile(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	cfg.Engines = EnginesDistributed
	s := newShared(t, &cfg)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func() (*life, engine.Findings) {
		t.Helper()
		n := runAs(t, "all", cfg, seams{servers: s.open})
		d := &doctor{n: n.Node}
		d.lookAtSecrets(ctx)
		fs := d.Findings
		return n, fs
	}
	c := engine.Caller{ID: "shop", Secrets: []engine.CallerSecret{{Secret: "whsec_AAAA"}}}
	n, fs := open()
	if fs[0].Level != "ok" {
		t.Errorf("without secrets: %+v", fs)
	}
	must(n.st.callers.Put(ctx, c))
	must(n.stop())
	n, fs = open()
	if fs[0].Level != "warn" || !strings.Contains(fs[0].Detail, "shop are stored in clear") {
		t.Errorf("in clear: %+v", fs)
	}
	must(n.stop())

	cfg.Secrets.KeyFile = filepath.Join(t.TempDir(), "key")
	if err := (sealer{&Node{cfg: cfg}}).sealCallers(ctx); err == nil || !strings.Contains(err.Error(), "secrets.key_file: ") {
		t.Errorf("a key file that is missing: %v", err)
	}
	_, err := secrets.MakeKeys(cfg.Secrets.KeyFile)
	must(err)
	n, _ = open()
	c.Version = 1
	must(n.st.callers.Put(ctx, c))
	raw, _, err := s.store.Callers().Get(ctx, "shop")
	must(err)
	if got, _, err := n.st.callers.Get(ctx, "shop"); err != nil || got.Secrets[0].Secret != "whsec_AAAA" || !raw.Secrets[0].Sealed() {
		t.Errorf("stored %+v, got %+v, %v", raw, got, err)
	}
	must(n.stop())
}
