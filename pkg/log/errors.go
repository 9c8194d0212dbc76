package log

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/notifyd/notifyd/pkg/notify"
)

// errTooSlow is the cause of an append that our own timer gave up on.
var errTooSlow = errors.New("no acknowledgement within the append timeout")

// translate makes one of our errors of whatever the client library returned.
// Everything but a bad request is the log being unavailable: the callers'
// answer (503, spill, try again) is the same for all of it.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return &notify.Error{Kind: notify.KindTooLarge, Code: "record_too_large", Msg: "the record is larger than the log takes", Err: err}
	case errors.Is(err, kerr.OffsetOutOfRange):
		return &notify.Error{Kind: notify.KindGone, Code: "offset_out_of_range", Msg: "the log does not hold this offset", Err: err}
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		return &notify.Error{Kind: notify.KindUnavailable, Code: "log", Msg: "the topic does not exist", RetryAfter: time.Second, Err: err}
	}
	return notify.Unavailable("log", time.Second, err)
}
