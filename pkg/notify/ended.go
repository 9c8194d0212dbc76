package notify

// Ended is a record of notifications-outcomes. It holds receivers of one envelope that ended
// without a failure and whose caller has an outcomes URL. The topic is internal: callers get
// the outcomes by callbacks, not from the topic.
type Ended struct {
	Version   int             `json:"version"` // 1
	Caller    string          `json:"caller"`
	Campaign  string          `json:"campaign,omitempty"`
	Channel   string          `json:"channel"`
	Category  string          `json:"category"`
	Template  string          `json:"template,omitempty"`
	Trace     string          `json:"traceparent,omitempty"` // of the request, W3C
	At        int64           `json:"at_ms"`                 // when the outcome became durable, ms since 1970
	Receivers []EndedReceiver `json:"receivers"`             // 1 to MaxEnded
}

// EndedVersion is the version of Ended that this build writes and reads.
const EndedVersion = 1

// MaxEnded is the maximum number of receivers in a record, and so in one callback.
const MaxEnded = 100

// EndedReceiver is one receiver of an Ended.
type EndedReceiver struct {
	ID       string `json:"id"`
	Epoch    int    `json:"epoch,omitempty"`
	User     string `json:"user_id,omitempty"`
	Status   string `json:"status,omitempty"`
	Code     string `json:"code,omitempty"`
	Provider string `json:"provider,omitempty"`
	Attempts int    `json:"attempts,omitempty"` // provider calls
	// Look says that the fields above do not decide the outcome. The callback gets the state
	// that Fold finds in all rows of the receiver when the callback is made.
	Look bool `json:"look,omitempty"`
	// Receipt says that the record comes from a receipt. A receipt may arrive before the row of
	// its call is durable; the reader then looks again later. Look is set as well.
	Receipt bool `json:"receipt,omitempty"`
}
