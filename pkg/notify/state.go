package notify

import "fmt"

// State is the state of a notification. The zero value None means that the state is not known.
type State uint8

// The states. Sent and the states after it are terminal: no worker sends the notification again in
// this epoch. A receipt may still change Sent and Unknown, and may change Failed to Delivered.
const (
	None State = iota
	Accepted
	Scheduled
	Deferred   // waits for the end of quiet hours, for a route, or for a retry
	Sent       // the provider accepted the message
	Delivered  // the provider confirmed that the message reached the device, phone or mailbox
	Failed     // the notification will not be delivered
	Suppressed // the user opted out, or the address is known to be dead
	Expired    // its deadline passed before a call was made
	Cancelled
	Unknown // it is not known whether the provider accepted the message
)

var stateNames = [...]string{
	"NONE", "ACCEPTED", "SCHEDULED", "DEFERRED", "SENT", "DELIVERED",
	"FAILED", "SUPPRESSED", "EXPIRED", "CANCELLED", "UNKNOWN",
}

// States is the number of states. It is the length of tables whose index is a State.
const States = len(stateNames)

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "NONE"
}

// ParseState is the inverse of String.
func ParseState(name string) (State, bool) {
	for i, n := range stateNames {
		if i > 0 && n == name {
			return State(i), true
		}
	}
	return None, false
}

// Terminal returns true if no worker sends the notification again in this epoch.
func (s State) Terminal() bool { return s >= Sent }

// MarshalText encodes a State as its name in JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (s *State) UnmarshalText(b []byte) error {
	v, ok := ParseState(string(b))
	if !ok {
		return Invalid("bad_state", "state", fmt.Sprintf("there is no state %q", b))
	}
	*s = v
	return nil
}

// legalMoves[s] lists the states to which a notification in state s may move within one epoch. A replay
// starts a new epoch in state Accepted.
var legalMoves = [States][]State{
	None:       {Accepted, Scheduled},
	Accepted:   {Deferred, Sent, Delivered, Failed, Suppressed, Expired, Cancelled, Unknown},
	Scheduled:  {Accepted, Deferred, Sent, Delivered, Failed, Suppressed, Expired, Cancelled, Unknown},
	Deferred:   {Accepted, Sent, Delivered, Failed, Suppressed, Expired, Cancelled, Unknown},
	Sent:       {Delivered, Failed},
	Unknown:    {Sent, Delivered, Failed},
	Delivered:  nil,
	Failed:     {Delivered}, // a DELIVERED receipt may follow a FAILED receipt
	Suppressed: nil,
	Expired:    nil,
	Cancelled:  nil,
}

// CanMove reports whether a notification in the state s may move to the given state.
func (s State) CanMove(target State) bool {
	for _, to := range legalMoves[s] {
		if to == target {
			return true
		}
	}
	return false
}

// InFailedFeed reports whether a notification of category cat with state s appears in its caller's
// failed feed. FAILED appears for every category. UNKNOWN appears for otp, alert and transactional,
// because the caller may reach the user in another way, or an operator may replay the notification.
func (s State) InFailedFeed(cat Category) bool {
	return s == Failed || s == Unknown && !cat.Bulk()
}

// addressRank orders reports about one address. A later report counts only if its rank is higher.
// Delivered > Failed > Sent > Unknown.
var addressRank = [States]uint8{Deferred: 1, Unknown: 2, Sent: 3, Failed: 4, Delivered: 5}

// receiverRank orders the addresses of one receiver. The address with the highest rank decides the
// receiver's state. Delivered > Sent > Unknown > Failed.
var receiverRank = [States]uint8{Failed: 1, Unknown: 2, Sent: 3, Delivered: 4}

// BetterAddressState gets the states in two reports about the same address, and returns the state
// that counts.
func BetterAddressState(earlier, later State) State {
	if addressRank[later] > addressRank[earlier] {
		return later
	}
	return earlier
}

// FoldAddresses returns a receiver's state from the states of its addresses. While any address
// waits, the state is Deferred. Otherwise it is the state with the highest rank in receiverRank.
func FoldAddresses(states []State) State {
	best := None
	for _, s := range states {
		switch {
		case s == Deferred:
			return Deferred
		case best == None || receiverRank[s] > receiverRank[best]:
			best = s
		}
	}
	return best
}
