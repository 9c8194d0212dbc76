package notify

// Ended is a record of notifications-outcomes: receivers of one envelope that
// have ended otherwise than by a failure, whose caller asked to be told of that.
// The topic is the server's own, and its records no interface: callers are told
// by callbacks.
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

// MaxEnded is how many receivers a record carries at most: what one callback
// tells of.
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
	// Look says that this row alone does not decide: what all rows of the
	// receiver say together is told, as of the telling.
	Look bool `json:"look,omitempty"`
	// Receipt says that a receipt told of it, which may come before the row of the
	// call is durable: then it is looked at again. Look is set.
	Receipt bool `json:"receipt,omitempty"`
}
