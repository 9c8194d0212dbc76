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
	// TraceState is the W3C tracestate beside it.
	TraceState string
	Items      []Item
	// Permit is the leave to send the items that the provider gave for this call.
	// Nil: a provider with a rate of its own waits for it in Send.
	Permit Permit
}

// Permit is a provider's leave to send some messages: it holds their part of the
// provider's rate, and of the calls that may be made at a time, from before the
// messages are claimed until their call has ended. Safe for concurrent use.
type Permit interface {
	// Messages is how many messages it is for, at least 1.
	Messages() int
	// Release gives back what no call has used. Further calls do nothing.
	Release()
}

// Item is one address of one receiver. Its slices alias the log record. A window
// has a thousand, so what its items share stands outside them.
type Item struct {
	Key       *RowKey // of the envelope, shared; with Index it makes the Ref of receipts
	Index     uint32  // of the receiver in its request; 0 outside fan-outs
	Fan       bool    // a receiver of a fan-out
	Addr      uint8   // ordinal of the address
	Given     bool    // Address came with the request, it is none of the user's: it may be made up, and says nothing about our configuration
	User      []byte
	Address   []byte // push: "apns:<token>" or "fcm:<token>"; sms: E.164; email: addr-spec
	Variables []byte // JSON object or nil
}

// ID is the id of the notification.
func (it *Item) ID() ID { return ID{Base: it.Key.Chunk.Base, Index: it.Index, Fan: it.Fan} }

// Class says what a provider's answer means for the receiver.
type Class uint8

const (
	// ClassAccepted: the provider took it.
	ClassAccepted Class = iota
	// ClassRetry: not taken; try again after RetryAfter or the backoff. The
	// provider is well, this item or moment is not.
	ClassRetry
	// ClassUnavailable: not taken; the provider or account is in trouble
	// (5xx, refused connections, throttled). Feeds its breaker.
	ClassUnavailable
	// ClassThrottled: not taken; a rate limit of the account. RetryAfter blocks
	// the account for everyone.
	ClassThrottled
	// ClassPermanent: never for this item (bad content, payload too large).
	ClassPermanent
	// ClassDeadAddress: the address is dead: permanent, and it joins the
	// suppression list.
	ClassDeadAddress
	// ClassOptedOut: the receiver told the provider to stop (Twilio 21610).
	ClassOptedOut
	// ClassConfig: our credentials or settings are wrong (401, 403): not the
	// item's fault; the breaker opens at once and somebody is paged.
	ClassConfig
	// ClassAmbiguous: the provider may have taken it: the connection was cut
	// or timed out after the request was sent.
	ClassAmbiguous
	// ClassReceipt is no answer: a receipt of an earlier call told the outcome,
	// so none was made. It stands in rows alone, never in a Result.
	ClassReceipt
	// ClassBusy: not sent, for our own rate or number of calls at a time left no
	// room. The item waits, which costs no attempt and tells a breaker nothing. It
	// stands in Results alone, never in a row.
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
	Confirmed  bool          // accepted and nothing further will be confirmed: Delivered
	RetryAfter time.Duration // 0: none given
	Provider   string        // "apns", "twilio:AC…": the provider and account that answered
	ProviderID string        // the provider's id of the message; empty when it is the AttemptID
	Code       string        // "apns_unregistered", "twilio_21610", "http_503", "timeout"
}

// Report tells the answer for the items of a call from one index up to below another,
// 0 <= from <= to <= len(call.Items): for all of them at once where a provider answers so.
// One by one an accepted item took 14 ns of a worker, most of it for the lock, and 4 so (P6).
type Report func(from, to int, r Result)

// One reports one item.
func (f Report) One(i int, r Result) { f(i, i+1, r) }

// Each is a Report that tells fn of each item.
func Each(fn func(i int, r Result)) Report {
	return func(from, to int, r Result) {
		for i := from; i < to; i++ {
			fn(i, r)
		}
	}
}
