package redis

import (
	"errors"
	"strings"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/pkg/notify"
)

// retryAfter is the Retry-After of errors while Redis is unavailable. A restart takes a few
// seconds, and a failover by sentinels takes about 3 s.
const retryAfter = 2 * time.Second

// refusals lists the errors of a server that only an operator can repair. The settings of
// the server or of this process are wrong, or the server is full. An entry has the prefix
// of the error message and an error code. Callers get notify.KindUnavailable with this
// error code, which tells the operator what to repair.
var refusals = []struct{ prefix, code string }{
	{"NOAUTH", "redis_refused"},
	{"WRONGPASS", "redis_refused"},
	{"NOPERM", "redis_refused"},
	{"ERR AUTH", "redis_refused"},
	{"ERR invalid password", "redis_refused"},
	{"OOM", "redis_full"},
	{"MISCONF", "redis_full"}, // Redis cannot write to its disk
}

// translate turns any error of the client, the server or a context into a *notify.Error.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e
	}
	code := "redis"
	if e, ok := errors.AsType[client.Error](err); ok {
		for _, r := range refusals {
			if strings.HasPrefix(e.Error(), r.prefix) {
				code = r.code
			}
		}
	}
	return notify.Unavailable(code, retryAfter, err)
}

func codeIs(err error, code string) bool {
	e, ok := errors.AsType[*notify.Error](err)
	return ok && e.Code == code
}
