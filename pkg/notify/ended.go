package notify

// Ended is a record of the topic notifications-outcomes. It lists, for one envelope, the receivers
// whose notifications ended and did not fail. It is written only if the caller wants every outcome at
// its outcomes URL. Workers write such records when they have finished an envelope, and the API writes
// one when a receipt arrives. The topic is internal: callers get the outcomes by callbacks, not
// from the topic.
type Ended struct {
	Version   int             `json:"version"` // 1
	Caller    string          `json:"caller"`
	Campaign  string          `json:"campaign,omitempty"`
	Channel   string          `json:"channel"`
	Category  string          `json:"category"`
	Template  string          `json:"template,omitempty"`
	Trace     string          `json:"traceparent,omitempty"` // traceparent of the request, W3C
	At        int64           `json:"at_ms"`                 // when the outcome became durable, ms since 1970
	Receivers []EndedReceiver `json:"receivers"`             // 1 to MaxEnded
}

// EndedVersion is the version of Ended that this build writes and reads.
const EndedVersion = 1

// MaxEnded is the maximum number of receivers in one Ended. A callback has the same limit, but its own
// constant (outcomehook.maxOutcomes).
const MaxEnded = 100

// EndedReceiver is one receiver of an Ended.
type EndedReceiver struct {
	ID       string `json:"id"`
	Epoch    int    `json:"epoch,omitempty"`
	User     string `json:"user_id,omitempty"`
	Status   string `json:"status,omitempty"`
	Code     string `json:"code,omitempty"`
	Provider string `json:"provider,omitempty"`
	Attempts int    `json:"attempts,omitempty"` // number of provider calls
	// Look is true if Epoch, Status and Code are not yet final. Then outcomehook.Follower replaces
	// them when it makes the callback: it computes them with Fold from all rows of the receiver.
	Look bool `json:"look,omitempty"`
	// Receipt is true if the record comes from a provider's receipt. A receipt may arrive before
	// the outcome row of its call is durable. The reader of the record then reads the rows again
	// later. If Receipt is true, Look is true too.
	Receipt bool `json:"receipt,omitempty"`
}
