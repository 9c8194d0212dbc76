package notify

// Failure is a record of the topic notifications-failed, schema version 1. Operators and trusted
// services read the topic. Callers read their own failed feed instead. The schema is published in
// docs/notifications-failed.schema.json.
type Failure struct {
	Version  int    `json:"version"`
	ID       string `json:"id"`
	Epoch    int    `json:"epoch"`
	Caller   string `json:"caller"`
	Campaign string `json:"campaign,omitempty"`
	Channel  string `json:"channel"`
	Category string `json:"category"`
	User     string `json:"user_id"`
	Template string `json:"template,omitempty"`
	// Class is the class of the provider's last answer, or FailureUndeliverable. If it is "ambiguous",
	// the state is UNKNOWN.
	Class     string `json:"class"`
	Code      string `json:"code"`
	Provider  string `json:"provider,omitempty"`
	Attempts  int    `json:"attempts"`              // number of provider calls
	Trace     string `json:"traceparent,omitempty"` // traceparent of the request, W3C
	Accepted  int64  `json:"accepted_ms"`
	Failed    int64  `json:"failed_ms"`
	Expires   int64  `json:"expires_ms,omitempty"`
	Chunk     string `json:"chunk"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// FailureUndeliverable is the class of a failure without a provider call. It is also the class if our
// client panicked during the call.
const FailureUndeliverable = "undeliverable"
