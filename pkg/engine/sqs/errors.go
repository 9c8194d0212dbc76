package sqs

import (
	"errors"
	"strings"
	"time"

	"github.com/aws/smithy-go"

	"github.com/notifyd/notifyd/pkg/notify"
)

const retryAfter = 2 * time.Second

// codeOf returns the error code in the answer of SQS, without the prefix of the code. It
// returns "" if SQS did not answer.
func codeOf(err error) string {
	e, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return ""
	}
	return trimCodePrefix(e.ErrorCode())
}

// trimCodePrefix removes the prefix that some servers and the older protocol of SQS put
// before an error code.
func trimCodePrefix(code string) string {
	return strings.TrimPrefix(code[strings.LastIndexByte(code, '#')+1:], "AWS.SimpleQueueService.")
}

// translate turns any error of the SDK, of SQS or of a context into a *notify.Error.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e
	}
	switch code := codeOf(err); code {
	case "NonExistentQueue", "QueueDoesNotExist":
		return &notify.Error{Kind: notify.KindUnavailable, Code: "queue_missing", Msg: "SQS does not have the queues of notifyd: run notifyd migrate up", RetryAfter: retryAfter, Err: err}
	case "AccessDenied", "AccessDeniedException", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSecurity", "InvalidAddress", "ExpiredToken", "MissingAuthenticationToken":
		return &notify.Error{Kind: notify.KindUnavailable, Code: "queue_refused", Msg: "SQS refuses this client: check sqs.credentials_file and the policy of the queues", RetryAfter: retryAfter, Err: err}
	}
	return notify.Unavailable("queue", retryAfter, err)
}

// isReceiptOver reports whether the error code says that a receipt is not valid any more.
func isReceiptOver(code string) bool {
	switch trimCodePrefix(code) {
	case "MessageNotInflight", "ReceiptHandleIsInvalid", "InvalidParameterValue":
		return true
	}
	return false
}
