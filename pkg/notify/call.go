package notify

import "time"

// Call is one claim window handed to a provider: one content, n items.
type Call struct {
	Channel  Channel
	Category Category
	Caller   string
	Content  *Content
	Expires  int64  // ms since 1970; 0: never
	Trace    string // W3C traceparent to send along; empty: none
	// TraceState is the W3C tracestate that belongs to Trace.
	TraceState string
	Items      []Item
	// Permit is the provider's permission to send the items of this call. nil: a provider with
	// a rate of its own waits for its rate in Send.
	Permit Permit
}

// Permit is a provider's permission to send some messages. It holds their share of the
// provider's rate and of its concurrent calls, from before the worker claims the messages until
// their call has ended. It is safe for concurrent use.
type Permit interface {
	// Messages returns the number of messages that the permit covers, at least 1.
	Messages() int
	// Release gives back the share that no call has used. Further calls do nothing.
	Release()
}

// Item is one address of one receiver. Its slices alias the log record. A window has a thousand
// items, so values that all items share are fields of Call or are shared by pointer.
type Item struct {
	Key       *RowKey // of the envelope, shared; Key and Index make the Ref of receipts
	Index     uint32  // of the receiver in its request; 0 outside fan-outs
	Fan       bool    // the receiver belongs to a fan-out
	Addr      uint8   // ordinal of the address
	Given     bool    // Address came with the request, not from the user's profile: it may be made up, so its failure does not mean that our configuration is wrong
	User      []byte
	Address   []byte // push: "apns:<token>" or "fcm:<token>"; sms: E.164; email: addr-spec
	Variables []byte // JSON object or nil
}

// ID returns the id of the notification.
func (it *Item) ID() ID { return ID{Base: it.Key.Chunk.Base, Index: it.Index, Fan: it.Fan} }

// Class says what a provider's answer means for the receiver.
type Class uint8

const (
	// ClassAccepted: the provider took it.
	ClassAccepted Class = iota
	// ClassRetry: not taken; try again after RetryAfter or the backoff. The provider works;
	// the cause is this item or this moment.
	ClassRetry
	// ClassUnavailable: not taken; the provider or account is in trouble
	// (5xx, refused connections, throttled). Feeds its breaker.
	ClassUnavailable
	// ClassThrottled: not taken; a rate limit of the account. No call of the account is made
	// before RetryAfter.
	ClassThrottled
	// ClassPermanent: the provider will never take this item (bad content, payload too large).
	ClassPermanent
	// ClassDeadAddress: the address is dead: permanent, and it joins the
	// suppression list.
	ClassDeadAddress
	// ClassOptedOut: the receiver told the provider to stop (Twilio 21610).
	ClassOptedOut
	// ClassConfig: our credentials or settings are wrong (401, 403), not the item. The circuit
	// breaker opens at once and an operator is paged.
	ClassConfig
	// ClassAmbiguous: the provider may have taken it. The connection was cut or timed out after
	// the request was sent.
	ClassAmbiguous
	// ClassReceipt is not an answer: a receipt of an earlier call gave the outcome, so no call
	// was made. It occurs only in rows, never in a Result.
	ClassReceipt
	// ClassBusy: not sent, because our own rate or number of concurrent calls was used up. The
	// item waits: that counts neither as an attempt nor for the circuit breaker. It occurs only
	// in Results, never in a row.
	ClassBusy
)

var classNames = [...]string{
	"accepted", "retry", "unavailable", "throttled", "permanent",
	"dead_address", "opted_out", "config", "ambiguous", "receipt", "busy",
}

func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return "unknown"
}

// Result is a provider's answer for one item.
type Result struct {
	Class      Class
	Confirmed  bool          // accepted, and the provider will send no receipt: the state is Delivered
	RetryAfter time.Duration // 0: none given
	Provider   string        // "apns", "twilio:AC…": the provider and account that answered
	ProviderID string        // the provider's id of the message; empty when it is the AttemptID
	Code       string        // "apns_unregistered", "twilio_21610", "http_503", "timeout"
}

// Report passes the answer r for the items from to to-1 of a call, with
// 0 <= from <= to <= len(call.Items). A provider that answers for many items at once reports
// them in one call: reported one by one an accepted item cost a worker 14 ns, most of it for
// the lock, and 4 ns in ranges (P6).
type Report func(from, to int, r Result)

// One reports item i.
func (f Report) One(i int, r Result) { f(i, i+1, r) }

// Each returns a Report that calls fn for each item.
func Each(fn func(i int, r Result)) Report {
	return func(from, to int, r Result) {
		for i := from; i < to; i++ {
			fn(i, r)
		}
	}
}
