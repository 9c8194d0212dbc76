package redis

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	client "github.com/redis/go-redis/v9"
)

// The client library has one logger for the whole process. By default it writes a line to
// stderr for every failed dial. This package replaces that logger. The replacement writes
// to the Config.Logger of the latest Connect.
var (
	clientLogger     atomic.Pointer[slog.Logger]
	setClientLogOnce sync.Once
)

type clientLog struct{}

// Printf is called by the client library. Its messages are about connections. They contain
// addresses but no passwords. Printf logs them only at level debug, because the methods of
// the Store return the errors as well.
func (clientLog) Printf(ctx context.Context, format string, v ...any) {
	if l := clientLogger.Load(); l.Enabled(ctx, slog.LevelDebug) {
		l.LogAttrs(ctx, slog.LevelDebug, "redis client", slog.String("remark", fmt.Sprintf(format, v...)))
	}
}

func setClientLogger(l *slog.Logger) {
	clientLogger.Store(l)
	setClientLogOnce.Do(func() { client.SetLogger(clientLog{}) })
}
