package notify

// State is the state of a notification. The zero value, None, means that nothing is known.
type State uint8

// The states. Those from Sent on are terminal: nothing more will be tried in
// this epoch, though a receipt may still move Sent and Unknown.
const (
	None State = iota
	Accepted
	Scheduled
	Deferred   // waits: quiet hours, a route, a retry
	Sent       // the provider took it
	Delivered  // the provider confirmed it reached the device, phone or mailbox
	Failed     // it will not be delivered
	Suppressed // opted out, or the address is known to be dead
	Expired    // its deadline passed before a call was made
	Cancelled
	Unknown // the provider may or may not have taken it
)

var stateNames = [...]string{
	"NONE", "ACCEPTED", "SCHEDULED", "DEFERRED", "SENT", "DELIVERED",
	"FAILED", "SUPPRESSED", "EXPIRED", "CANCELLED", "UNKNOWN",
}

// States is the number of states, for tables indexed by one.
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

// Terminal reports whether nothing more will be tried in this epoch.
func (s State) Terminal() bool { return s >= Sent }

// MarshalText makes a State its name in JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (s *State) UnmarshalText(b []byte) error {
	v, ok := ParseState(string(b))
	if !ok {
		return Invalid("bad_state", "state", "no state is called "+string(b))
	}
	*s = v
	return nil
}

// legalMoves[from] lists the states to which a notification may move within one epoch. A replay
// starts a new epoch at Accepted.
var legalMoves = [States][]State{
	None:       {Accepted, Scheduled},
	Accepted:   {Deferred, Sent, Delivered, Failed, Suppressed, Expired, Cancelled, Unknown},
	Scheduled:  {Accepted, Deferred, Sent, Delivered, Failed, Suppressed, Expired, Cancelled, Unknown},
	Deferred:   {Accepted, Sent, Delivered, Failed, Suppressed, Expired, Cancelled, Unknown},
	Sent:       {Delivered, Failed},
	Unknown:    {Sent, Delivered, Failed},
	Delivered:  nil,
	Failed:     {Delivered}, // a DELIVERED receipt after a FAILED one
	Suppressed: nil,
	Expired:    nil,
	Cancelled:  nil,
}

// CanMove reports whether a notification in state s may move to next.
func (s State) CanMove(next State) bool {
	for _, to := range legalMoves[s] {
		if to == next {
			return true
		}
	}
	return false
}

// InFailedFeed reports whether a notification of category cat with state s appears in its caller's
// failed feed: FAILED does, and UNKNOWN of otp, alert and transactional. The caller may reach
// the user in another way, or an operator may replay it.
func (s State) InFailedFeed(cat Category) bool {
	return s == Failed || s == Unknown && !cat.Bulk()
}

// addressRank orders reports about one address: a later report counts only if it ranks higher.
// Delivered > Failed > Sent > Unknown.
var addressRank = [States]uint8{Deferred: 1, Unknown: 2, Sent: 3, Failed: 4, Delivered: 5}

// receiverRank orders the addresses of one receiver: the highest decides the receiver's state.
// Delivered > Sent > Unknown > Failed.
var receiverRank = [States]uint8{Failed: 1, Unknown: 2, Sent: 3, Delivered: 4}

// BetterAddressState returns which of two reports about the same address counts.
func BetterAddressState(a, b State) State {
	if addressRank[b] > addressRank[a] {
		return b
	}
	return a
}

// FoldAddresses returns a receiver's state from the states of its addresses: Deferred while any
// address still waits, else the highest by receiverRank.
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
