package log

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/notifyd/notifyd/pkg/notify"
)

// errTooSlow is the cause of an append that took longer than AppendTimeout.
var errTooSlow = errors.New("the log did not acknowledge the records within the append timeout")

// translate converts an error of the client library into a notify.Error. If the request is the
// cause of the error, the kind says what is wrong with it. Every other error becomes
// KindUnavailable, which callers always treat in the same way (503, spill, retry).
func translate(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return &notify.Error{Kind: notify.KindTooLarge, Code: "record_too_large", Msg: "the record is larger than the log accepts", Err: err}
	case errors.Is(err, kerr.OffsetOutOfRange):
		return &notify.Error{Kind: notify.KindGone, Code: "offset_out_of_range", Msg: "the log does not hold this offset", Err: err}
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		return &notify.Error{Kind: notify.KindUnavailable, Code: "log", Msg: "the topic does not exist", RetryAfter: time.Second, Err: err}
	}
	return notify.Unavailable("log", time.Second, err)
}
