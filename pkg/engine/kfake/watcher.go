package kfake

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

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

	mu   sync.Mutex
	cuts []Truncation
}

func newWatcher(cfg Config, g *Guard) *watcher { return &watcher{cfg: cfg, guard: g} }

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
	if w.cfg.Logger.Enabled(context.Background(), at) {
		w.cfg.Logger.Log(context.Background(), at, "embedded log: "+fmt.Sprintf(format, args...))
	}
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
