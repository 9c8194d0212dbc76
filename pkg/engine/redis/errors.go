package redis

import (
	"errors"
	"strings"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/pkg/notify"
)

// retryAfter is what callers are told while Redis is away: a restart takes
// seconds, a failover by sentinels about three.
const retryAfter = 2 * time.Second

// refusals are the beginnings of a server's answers that are about its settings
// or ours: waiting does not help, somebody has to do something. They are all
// unavailable to callers; the code tells the operator.
var refusals = []struct{ begins, code string }{
	{"NOAUTH", "redis_refused"},
	{"WRONGPASS", "redis_refused"},
	{"NOPERM", "redis_refused"},
	{"ERR AUTH", "redis_refused"},
	{"ERR invalid password", "redis_refused"},
	{"OOM", "redis_full"},
	{"MISCONF", "redis_full"}, // its disk
}

// translate turns any error of the client, the server or a context into ours.
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
			if strings.HasPrefix(e.Error(), r.begins) {
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
