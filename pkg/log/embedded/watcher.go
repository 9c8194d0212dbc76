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

// watcher is the broker's logger. The library takes no file system from us, so its log
// is the only place where it hands out the error of a write that failed.
type watcher struct {
	cfg   Config
	guard *Guard

	mu    sync.Mutex
	heard map[string]*echo // by format
}

// echo is a complaint of the broker that it repeats: on a full disk it has one
// for every batch and every commit.
type echo struct {
	began time.Time // of the span
	lines int       // heard in it
	at    slog.Level
	last  string
}

// What is logged of complaints of one kind in a span; the others are counted.
const (
	echoSpan  = 10 * time.Second
	echoLines = 3
)

func newWatcher(cfg Config, g *Guard) *watcher {
	return &watcher{cfg: cfg, guard: g, heard: map[string]*echo{}}
}

// say logs a complaint, unless there were enough of its kind.
func (w *watcher) say(at slog.Level, format, text string) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.heard[format]
	if e == nil || now.Sub(e.began) >= echoSpan {
		w.sum(e)
		e = &echo{began: now}
		w.heard[format] = e
	}
	e.lines++
	e.at, e.last = at, text
	if e.lines <= echoLines {
		w.cfg.Logger.Log(context.Background(), at, text)
	}
}

// sum logs how many complaints of a span were not logged. mu is held.
func (w *watcher) sum(e *echo) {
	if e != nil && e.lines > echoLines {
		w.cfg.Logger.Log(context.Background(), e.at, "embedded log: it goes on like this", "times", e.lines-echoLines, "within", echoSpan, "last", e.last)
	}
}

// settle sums up the spans that are over, or all of them.
func (w *watcher) settle(over func(began time.Time) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for format, e := range w.heard {
		if over(e.began) {
			w.sum(e)
			delete(w.heard, format)
		}
	}
}

// settleOld sums up the spans that are over.
func (w *watcher) settleOld() {
	now := time.Now()
	w.settle(func(began time.Time) bool { return now.Sub(began) >= echoSpan })
}

// Logf implements the broker's Logger.
func (w *watcher) Logf(level kfake.LogLevel, format string, args ...any) {
	if level <= kfake.LogLevelWarn && len(args) > 0 {
		if err, ok := args[len(args)-1].(error); ok && ofFile(err) {
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
		w.cfg.Logger.Debug(text) // who asks for it gets all of it
		return
	}
	w.say(at, format, text)
}

// ofFile reports whether err is a file's: the broker also warns of entries that it
// cannot parse, and those are no fault of the disk.
func ofFile(err error) bool {
	_, path := errors.AsType[*fs.PathError](err)
	_, link := errors.AsType[*os.LinkError](err)
	_, errno := errors.AsType[syscall.Errno](err)
	return path || link || errno || errors.Is(err, io.ErrShortWrite)
}
