package notify

import "time"

// Call is one claim window that a worker sends to a provider: one content and len(Items) items.
type Call struct {
	Channel  Channel
	Category Category
	Caller   string
	Content  *Content
	Expires  int64  // ms since 1970; 0: never
	Trace    string // W3C traceparent to send with the call; empty: none
	// TraceState is the W3C tracestate that belongs to Trace.
	TraceState string
	Items      []Item
	// Permit is the provider's permission to send the items of this call. nil: the provider gives
	// no permits; it limits its rate itself and waits in Send.
	Permit Permit
}

// Permit is a provider's permission to send some messages. It reserves a share of the provider's rate
// and of its concurrent calls. The reservation begins before the worker claims the messages and ends
// when their call has ended. A Permit is safe for concurrent use.
type Permit interface {
	// Messages returns for how many messages the permit is valid, at least 1.
	Messages() int
	// Release gives back the part of the reservation that no call has used. Only the first call of
	// Release has an effect.
	Release()
}

// Item is one address of one receiver. Its slices are parts of the envelope's record in the log. A
// window has up to a thousand items. So a value that is the same for all items is a field of Call,
// or the items share a pointer to it (Key).
type Item struct {
	Key    *RowKey // key of the envelope's row, shared by all items
	Index  uint32  // index of the receiver in its request; 0 outside fan-outs
	FanOut bool    // the receiver belongs to a fan-out
	Addr   uint8   // number of the address among the receiver's addresses, from 0
	// FromRequest is true if Address came with the request, not from the user's profile. Such an address may
	// be invented, so its failure does not mean that our configuration is wrong.
	FromRequest bool
	User        []byte
	Address     []byte // push: "apns:<token>" or "fcm:<token>"; sms: E.164; email: addr-spec
	Variables   []byte // JSON object or nil
}

// ID returns the id of the notification.
func (it *Item) ID() ID { return ID{Base: it.Key.Chunk.Base, Index: it.Index, FanOut: it.FanOut} }

// Class says what a provider's answer means for the receiver.
type Class uint8

const (
	// ClassAccepted: the provider accepted the item.
	ClassAccepted Class = iota
	// ClassRetry: the provider did not accept the item. Try again after RetryAfter or the backoff. The
	// provider works: the cause is this item or a short problem.
	ClassRetry
	// ClassUnavailable: the provider did not accept the item, because the provider or the account
	// has a problem (5xx, refused connections). The circuit breaker counts the answer as a failure.
	ClassUnavailable
	// ClassThrottled: the provider did not accept the item, because the account reached a rate
	// limit. No call with this account is made until RetryAfter has passed.
	ClassThrottled
	// ClassPermanent: the provider will never accept this item (bad content, payload too large).
	ClassPermanent
	// ClassDeadAddress: the address is dead. The failure is permanent, and the address is added to the
	// suppression list.
	ClassDeadAddress
	// ClassOptedOut: the receiver told the provider to stop sending (Twilio 21610).
	ClassOptedOut
	// ClassConfig: our credentials or settings are wrong (401, 403), not the item. The circuit
	// breaker opens at once and an operator is paged.
	ClassConfig
	// ClassAmbiguous: it is not known whether the provider accepted the item. The connection was cut or
	// timed out after the request was sent.
	ClassAmbiguous
	// ClassReceipt is not a provider's answer. No call was made, because a receipt of an earlier call
	// already gave the outcome. ClassReceipt occurs only in rows, never in a Result.
	ClassReceipt
	// ClassBusy: nothing was sent, because our own limit of rate or of concurrent calls was reached.
	// The item waits. The wait counts neither as an attempt nor for the circuit breaker. ClassBusy
	// occurs only in a Result, never in a row.
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
	Confirmed  bool          // true: the provider accepted the item and will send no receipt; the state is Delivered
	RetryAfter time.Duration // how long to wait before a retry; 0: the provider gave no time
	Provider   string        // the provider and account that answered: "apns", "twilio:AC…"
	ProviderID string        // the provider's id of the message; empty if it equals the AttemptID
	Code       string        // "apns_unregistered", "twilio_21610", "http_503", "timeout"
}

// Report passes the answer r for the items call.Items[first:end] to the worker. A provider that
// answers for many items at once reports all of them in one call of Report. When items were
// reported one by one, a worker spent 14 ns on each accepted item, mostly on the lock. With ranges
// it spends 4 ns (work P6 of make bench).
type Report func(first, end int, r Result)

// One reports the answer r for item i only.
func (f Report) One(i int, r Result) { f(i, i+1, r) }

// Each returns a Report that calls the function fn for each item.
func Each(fn func(i int, r Result)) Report {
	return func(first, end int, r Result) {
		for i := first; i < end; i++ {
			fn(i, r)
		}
	}
}
