package kfake

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Truncation is a segment that the broker cut when it opened, because what
// followed was no batch to it.
type Truncation struct {
	Topic     string
	Partition int32
	Segment   int64 // base offset
	Bytes     int64 // cut away
}

func (t Truncation) String() string {
	return fmt.Sprintf("%s/%d: the broker cut %d bytes off segment %d", t.Topic, t.Partition, t.Bytes, t.Segment)
}

// watcher is the broker's logger: the only place where it tells of cut segments
// and of writes that failed.
type watcher struct {
	cfg   Config
	guard *Guard

	mu    sync.Mutex
	cuts  []Truncation
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

func (w *watcher) truncated() []Truncation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Truncation(nil), w.cuts...)
}

// truncating is the broker's message about a cut segment; a test cuts one and
// so holds this against the library.
const truncating = "partition %s-%d segment %d: truncating %d corrupt bytes"

// Logf implements the broker's Logger.
func (w *watcher) Logf(level kfake.LogLevel, format string, args ...any) {
	if format == truncating && len(args) == 4 {
		w.cut(args)
	}
	// "persist batch ...", "persist group entry ...": a write failed.
	if level <= kfake.LogLevelWarn && strings.HasPrefix(format, "persist") && len(args) > 0 {
		if err, ok := args[len(args)-1].(error); ok {
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

func (w *watcher) cut(args []any) {
	topic, _ := args[0].(string)
	partition, _ := args[1].(int32)
	base, _ := args[2].(int64)
	n, _ := args[3].(int)
	w.mu.Lock() // partitions are loaded concurrently
	defer w.mu.Unlock()
	w.cuts = append(w.cuts, Truncation{Topic: topic, Partition: partition, Segment: base, Bytes: int64(n)})
}
