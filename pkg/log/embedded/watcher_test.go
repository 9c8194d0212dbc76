package embedded

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// What the broker repeats is told a few times and then counted, each kind of it
// by itself; the guard hears all of it.
func TestRepeatedComplaintsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		cfg := Config{Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))}.withDefaults()
		g := newGuard(cfg)
		w := newWatcher(cfg, g)
		count := func(text string) int {
			n := strings.Count(out.String(), text)
			return n
		}
		batch := func(n int) {
			for range n {
				w.Logf(kfake.LogLevelWarn, "persist batch %s-%d: %v", "t", 1, syscall.ENOSPC)
				time.Sleep(time.Millisecond)
			}
		}
		batch(1000)
		w.Logf(kfake.LogLevelError, "persist group entry write: %v", syscall.ENOSPC)
		w.Logf(kfake.LogLevelDebug, "a detail")
		if count("persist batch t-1") != 3 || count("persist group entry") != 1 || count("a detail") != 1 || count("times=") != 0 {
			t.Errorf("after a second:\n%s", &out)
		}
		if code(g.Err()) != "disk_full" {
			t.Errorf("guard: %v", g.Err())
		}
		w.endOldSpans() // the span is not over
		if count("times=") != 0 {
			t.Errorf("too early:\n%s", &out)
		}
		time.Sleep(repeatSpan)
		w.endOldSpans() // nobody complains any more
		if count("times=997") != 1 || count("times=") != 1 {
			t.Errorf("after the span:\n%s", &out)
		}
		out.Reset()
		batch(12_000) // beyond a span
		if count("msg=\"embedded log: persist batch") != 6 || count("times=9997") != 1 {
			t.Errorf("in two spans:\n%s", &out)
		}
		w.endSpans(func(time.Time) bool { return true }) // at the end
		if count("times=1997") != 1 {
			t.Errorf("at the end:\n%s", &out)
		}
	})
}

// A segment that the broker cuts after it was checked is told.
func TestCutsOfTheBrokerAreSeen(t *testing.T) {
	t.Parallel()
	cfg := Config{Dir: t.TempDir(), Topics: map[string]int{"a-b": 1}}
	b := open(t, cfg)
	b.fill(t, "a-b", 0, 0, 3, 100)
	cfg.Dir = crash(t, cfg.Dir)
	cfg = cfg.withDefaults()
	found, err := check(cfg)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(cfg.Dir, "partitions", "a-b-0", "0.dat")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-5] ^= 1
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := &Broker{cfg: cfg, checked: found, guard: newGuard(cfg)}
	damaged.watch = newWatcher(cfg, damaged.guard)
	if err := damaged.startOnPort(); err != nil {
		t.Fatal(err)
	}
	defer damaged.Close()
	cuts := damaged.Truncated()
	if len(cuts) != 1 || cuts[0].Topic != "a-b" || cuts[0].Partition != 0 || cuts[0].To >= 3 || cuts[0].End != 3 {
		t.Errorf("%+v", cuts)
	}
}
