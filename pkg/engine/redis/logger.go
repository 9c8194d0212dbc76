package redis

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	client "github.com/redis/go-redis/v9"
)

// The client has one logger for the whole process. By default it writes to stderr, a line
// for every failed dial. Here it writes to the logger of the latest Connect.
var (
	clientLogger     atomic.Pointer[slog.Logger]
	setClientLogOnce sync.Once
)

type clientLog struct{}

// Printf is called by the client. Its messages are about connections; they contain
// addresses but no passwords. They are logged at level debug only, because the calls
// return the errors as well.
func (clientLog) Printf(ctx context.Context, format string, v ...any) {
	if l := clientLogger.Load(); l.Enabled(ctx, slog.LevelDebug) {
		l.LogAttrs(ctx, slog.LevelDebug, "redis client", slog.String("remark", fmt.Sprintf(format, v...)))
	}
}

func setClientLogger(l *slog.Logger) {
	clientLogger.Store(l)
	setClientLogOnce.Do(func() { client.SetLogger(clientLog{}) })
}
