package redis

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	client "github.com/redis/go-redis/v9"
)

// The client has one logger for the whole process and writes to stderr by
// default, a line for every failed dial. It gets the one of the latest Connect.
var (
	remarks    atomic.Pointer[slog.Logger]
	setRemarks sync.Once
)

type remarker struct{}

// Printf is called by the client. Its remarks are about connections, and hold
// addresses but no passwords. The errors themselves come back from the calls,
// where somebody deals with them, so remarks are for debugging.
func (remarker) Printf(ctx context.Context, format string, v ...any) {
	if l := remarks.Load(); l.Enabled(ctx, slog.LevelDebug) {
		l.LogAttrs(ctx, slog.LevelDebug, "redis client", slog.String("remark", fmt.Sprintf(format, v...)))
	}
}

func logTo(l *slog.Logger) {
	remarks.Store(l)
	setRemarks.Do(func() { client.SetLogger(remarker{}) })
}
