package notify

// Failure is a record of notifications-failed, schema version 1. Operators and
// trusted services read the topic; callers have their own feed. The schema is
// published in docs/notifications-failed.schema.json.
type Failure struct {
	Version   int    `json:"version"`
	ID        string `json:"id"`
	Epoch     int    `json:"epoch"`
	Caller    string `json:"caller"`
	Campaign  string `json:"campaign,omitempty"`
	Channel   string `json:"channel"`
	Category  string `json:"category"`
	User      string `json:"user_id"`
	Template  string `json:"template,omitempty"`
	Class     string `json:"class"` // of the last answer, or FailureUndeliverable; ambiguous: the state is UNKNOWN
	Code      string `json:"code"`
	Provider  string `json:"provider,omitempty"`
	Attempts  int    `json:"attempts"`              // provider calls
	Trace     string `json:"traceparent,omitempty"` // of the request, W3C
	Accepted  int64  `json:"accepted_ms"`
	Failed    int64  `json:"failed_ms"`
	Expires   int64  `json:"expires_ms,omitempty"`
	Chunk     string `json:"chunk"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// FailureUndeliverable is the class of a failure without a provider call, or of a call that
// panicked in our client.
const FailureUndeliverable = "undeliverable"
