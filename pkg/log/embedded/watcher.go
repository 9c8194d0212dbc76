package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// watcher is the broker's logger. The broker library reports a failed write only in its log lines,
// and we cannot give it a file system that reports errors. So watcher finds such errors in the log
// lines and passes them to the Guard.
type watcher struct {
	cfg   Config
	guard *Guard

	mu       sync.Mutex
	warnings map[string]*repeatedWarning // key: format of the warning
}

// repeatedWarning counts a kind of warning that the broker repeats within a span of time
// (repeatSpan). On a full disk the broker warns of every batch and of every commit.
type repeatedWarning struct {
	began time.Time // start of the span
	lines int       // warnings in the span
	at    slog.Level
	last  string
}

// Within a repeatSpan, watcher logs only the first repeatLines warnings of each kind. It counts the
// others.
const (
	repeatSpan  = 10 * time.Second
	repeatLines = 3
)

func newWatcher(cfg Config, g *Guard) *watcher {
	return &watcher{cfg: cfg, guard: g, warnings: map[string]*repeatedWarning{}}
}

// logLimited logs a warning, unless repeatLines warnings of its kind were logged in the present span.
func (w *watcher) logLimited(at slog.Level, format, text string) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.warnings[format]
	if e == nil || now.Sub(e.began) >= repeatSpan {
		w.logSuppressed(e)
		e = &repeatedWarning{began: now}
		w.warnings[format] = e
	}
	e.lines++
	e.at, e.last = at, text
	if e.lines <= repeatLines {
		w.cfg.Logger.Log(context.Background(), at, text)
	}
}

// logSuppressed logs how many warnings of a span were not logged. The caller holds w.mu.
func (w *watcher) logSuppressed(e *repeatedWarning) {
	if e != nil && e.lines > repeatLines {
		w.cfg.Logger.Log(context.Background(), e.at, "embedded log: more warnings of this kind were not logged", "times", e.lines-repeatLines, "within", repeatSpan, "last", e.last)
	}
}

// endSpans ends the spans for which isOver returns true, and logs their suppressed warnings.
func (w *watcher) endSpans(isOver func(began time.Time) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for format, e := range w.warnings {
		if isOver(e.began) {
			w.logSuppressed(e)
			delete(w.warnings, format)
		}
	}
}

// endOldSpans ends the spans that began repeatSpan ago or earlier.
func (w *watcher) endOldSpans() {
	now := time.Now()
	w.endSpans(func(began time.Time) bool { return now.Sub(began) >= repeatSpan })
}

// Logf implements the broker's Logger.
func (w *watcher) Logf(level kfake.LogLevel, format string, args ...any) {
	if level <= kfake.LogLevelWarn && len(args) > 0 {
		if err, ok := args[len(args)-1].(error); ok && isFileError(err) {
			w.guard.writeFailed(err)
		}
	}
	at := slog.LevelDebug
	switch level {
	case kfake.LogLevelError:
		at = slog.LevelError
	case kfake.LogLevelWarn:
		at = slog.LevelWarn
	}
	if !w.cfg.Logger.Enabled(context.Background(), at) {
		return
	}
	text := "embedded log: " + fmt.Sprintf(format, args...)
	if at == slog.LevelDebug {
		w.cfg.Logger.Debug(text) // debug lines are not limited
		return
	}
	w.logLimited(at, format, text)
}

// isFileError reports whether err comes from a file operation. The broker also warns of entries
// that it cannot parse, but then the disk has not failed.
func isFileError(err error) bool {
	_, path := errors.AsType[*fs.PathError](err)
	_, link := errors.AsType[*os.LinkError](err)
	_, errno := errors.AsType[syscall.Errno](err)
	return path || link || errno || errors.Is(err, io.ErrShortWrite)
}
