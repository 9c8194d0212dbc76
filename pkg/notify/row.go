package notify

import "sort"

// RowKey is the key of an outcome row, which holds the outcomes of one envelope's receivers.
type RowKey struct {
	Chunk     Chunk
	Epoch     uint16
	Attempt   uint16
	Deferrals uint16
	First     uint32 // request index of the first receiver of a derived envelope
	Kind      RowKind
}

// RowKind distinguishes the outcomes of calls from receipts that came later.
type RowKind uint8

const (
	// RowOutcome is written by the worker that handled the envelope.
	RowOutcome RowKind = iota
	// RowReceipt is a provider's delivery receipt for one receiver (First).
	RowReceipt
)

// ReceiptKey returns the row key of a receipt. The receipt reports state s for address addr of
// the receiver with this request index; call is the row key of the envelope that made the call.
// Receipts arrive in any order and more than once: each state of an address has a row of its
// own, and Fold decides which one counts.
func ReceiptKey(call RowKey, index uint32, addr uint8, s State) RowKey {
	call.Kind, call.First = RowReceipt, index
	call.Deferrals = uint16(addr)<<8 | uint16(s)
	return call
}

// Row holds the outcomes of one envelope: a default and the exceptions from it. The worker first
// writes it as a claim: it raises StartedUpTo before it calls the provider. It writes the row
// last with Done set. Each write overwrites the row under the same key.
type Row struct {
	Key    RowKey
	Count  uint32   // receivers of the envelope
	Digest uint64   // ColumnDigest of its receivers
	Index  []uint32 // request index per position; nil for originals, whose chunk body holds them

	DoneUpTo    uint32 // positions below have an outcome
	StartedUpTo uint32 // positions below may have been handed to a provider
	Starts      uint16 // how often the window at DoneUpTo was started; above worker.Config.MaxStarts its receivers go in solo runs
	Done        bool   // every position has an outcome

	// Resent counts receivers that were handed to a provider again although an earlier call may
	// have been taken. It is the exact bound of duplicates.
	Resent uint32

	Default    Exception   // outcome of positions below DoneUpTo that have no exception; its Pos and Addr are not used
	Exceptions []Exception // ascending (Pos, Addr); see Waits for the one at DoneUpTo

	Caller   string
	Campaign string
	Channel  Channel
	Category Category
	Accepted int64 // ms since 1970, of the request
	Updated  int64 // ms since 1970, of this row
	Topic    string
	LogPart  int32 // where the envelope lies in the log
	Offset   int64

	// Stamp orders the writes of the row (engine.Tenure). It is not stored: rows that are read
	// have 0. With 0 the last write wins.
	Stamp int64

	// Damaged holds the stored bytes of a row that cannot be decoded; then only Key is set
	// besides (engine.Status.Resume). nil: the row was decoded.
	Damaged []byte
}

// Exception is the outcome of one position, or of one address of it, that differs from the
// row's default.
type Exception struct {
	Pos      uint32
	Addr     uint8 // ordinal of the address, 0 for the first or only one
	Of       uint8 // number of addresses tried; 0 and 1 mean one
	State    State
	Retry    bool   // State Deferred: continues as a retry (attempt + 1), else as a deferral
	Wake     int64  // State Deferred: when it continues, ms since 1970
	Class    Class  // of the provider's last answer; ClassAccepted if there was no call
	Code     string // why, e.g. "apns_unregistered", "opted_out", "no_address"
	Provider string // which provider or account answered
	Receipt  string // the provider's own id of the message
}

// At returns the exceptions of position pos.
func (r *Row) At(pos uint32) []Exception {
	lo := sort.Search(len(r.Exceptions), func(i int) bool { return r.Exceptions[i].Pos >= pos })
	hi := lo
	for hi < len(r.Exceptions) && r.Exceptions[hi].Pos == pos {
		hi++
	}
	return r.Exceptions[lo:hi]
}

// Waits returns what the receiver at pos waits for while its worker holds it. Such a receiver is
// started but its provider cannot be called yet. The worker notes this for all such positions
// in one Deferred exception at DoneUpTo, a position that has no outcome while the row is not
// done. The exception only informs readers: no retry or deferral was handed on.
func (r *Row) Waits(pos uint32) (x Exception, ok bool) {
	if r.Done || pos < r.DoneUpTo || pos >= r.StartedUpTo {
		return x, false
	}
	if ex := r.At(r.DoneUpTo); len(ex) == 1 && ex[0].State == Deferred {
		return ex[0], true
	}
	return x, false
}

// PosOf returns the position of the receiver with this request index in a row that has an Index.
func (r *Row) PosOf(index uint32) (uint32, bool) {
	i := sort.Search(len(r.Index), func(i int) bool { return r.Index[i] >= index })
	return uint32(i), i < len(r.Index) && r.Index[i] == index
}

// Outcome is the result of Fold for one receiver.
type Outcome struct {
	State   State
	Epoch   uint16
	Attempt uint16 // of the row that decided
	Code    string
	Updated int64 // ms since 1970; 0 while no row exists
}

// StateOf returns the state that Fold finds. Most chunks have one row without an exception for the
// receiver; for these StateOf takes a few nanoseconds.
func StateOf(rows []Row, index, pos uint32) State {
	if len(rows) == 1 {
		r := &rows[0]
		settled := r.Done || pos < r.DoneUpTo
		if r.Key.Kind == RowOutcome && r.Index == nil && pos < r.Count && settled && len(r.At(pos)) == 0 {
			return r.Default.State
		}
	}
	return Fold(rows, index, pos).State
}

// Fold returns the state of a receiver from all rows of its chunk, in any order. index is the
// receiver's request index, pos its position in the original chunk. The highest epoch wins.
// Within it the best report of each address counts, and then the best address. A receiver that
// still waits at any address is Deferred.
//
// A row that is not done may hold exceptions behind DoneUpTo, of windows that finished early.
// Fold ignores them. If such a row notes what its receivers wait for (Waits), they are Deferred
// unless another row decides their state.
//
// If a row handed a receiver on (Deferred), the row of the next envelope replaces that entry. So
// only the latest (attempt, deferrals) of an epoch counts, and receipts change what was Sent or
// Unknown.
func Fold(rows []Row, index, pos uint32) Outcome {
	out := Outcome{State: Accepted}
	epoch := -1
	for i := range rows {
		if _, ok := rows[i].position(index, pos); ok && int(rows[i].Key.Epoch) > epoch {
			epoch = int(rows[i].Key.Epoch)
		}
	}
	if epoch < 0 {
		return out
	}
	out.Epoch = uint16(epoch)
	var addrs [256]State
	count, whole := 0, None // whole: an outcome of the whole receiver, without a call
	var wholeCode string
	var held *Row // the row that notes what the receiver waits for
	var waits Exception
	for _, r := range rowsInOrder(rows, uint16(epoch)) {
		p, ok := r.position(index, pos)
		if !ok {
			continue
		}
		if p >= r.DoneUpTo && !r.Done {
			if x, ok := r.Waits(p); ok {
				held, waits = r, x
				out.Updated = max(out.Updated, r.Updated)
			}
			continue
		}
		out.Updated = max(out.Updated, r.Updated)
		ex := r.At(p)
		if len(ex) == 0 {
			ex = []Exception{r.Default}
			ex[0].Pos, ex[0].Addr = p, 0
		}
		if r.Key.Kind == RowOutcome {
			// This row's envelope got the addresses that were Deferred before. The row
			// replaces their state by an outcome of the address or of the whole receiver. An
			// address that the row does not mention has no state.
			for a := range addrs[:count] {
				if addrs[a] == Deferred {
					addrs[a] = addressState(ex, uint8(a))
					out.Code, out.Attempt = ex[0].Code, r.Key.Attempt
				}
			}
		}
		for _, x := range ex {
			switch {
			case x.State == Suppressed, x.State == Expired, x.State == Cancelled, x.State == Failed && x.Code == CodeNoAddress:
				whole, wholeCode = x.State, x.Code
				out.Attempt = r.Key.Attempt
				continue
			case r.Key.Kind == RowOutcome && x.Of <= 1 && count > 1:
				continue // an outcome of the whole receiver, applied to its addresses above
			}
			was := addrs[x.Addr]
			if now := BetterAddressState(was, x.State); now != was || now == Deferred {
				addrs[x.Addr] = now
				out.Code, out.Attempt = x.Code, r.Key.Attempt
			}
			count = max(count, int(x.Addr)+1, int(x.Of))
		}
	}
	switch called := FoldAddresses(addrs[:count]); {
	case held != nil && (called == Deferred || called == None && whole == None):
		out.State, out.Code, out.Attempt = Deferred, waits.Code, held.Key.Attempt
	case called != None:
		out.State = called
	case whole != None:
		out.State, out.Code = whole, wholeCode
	}
	return out
}

// addressState returns the state of address addr according to the exceptions of its receiver, or
// None if they do not mention it or no call was made.
func addressState(ex []Exception, addr uint8) State {
	for i := range ex {
		x := &ex[i]
		if x.Addr != addr && x.Of > 1 {
			continue
		}
		switch {
		case x.State == Suppressed, x.State == Expired, x.State == Cancelled, x.Code == CodeNoAddress:
			return None
		}
		return x.State
	}
	return None
}

// CodeNoAddress is the code of a receiver that had no address at fire time.
const CodeNoAddress = "no_address"

// position returns the receiver's position in r's envelope, and whether it is in it.
func (r *Row) position(index, pos uint32) (uint32, bool) {
	switch {
	case r.Key.Kind == RowReceipt:
		return 0, r.Key.First == index
	case len(r.Index) > 0:
		return r.PosOf(index)
	}
	return pos, pos < r.Count
}

// rowsInOrder returns the rows of an epoch in the order of their envelopes, receipts last.
func rowsInOrder(rows []Row, epoch uint16) []*Row {
	var rs []*Row
	for i := range rows {
		if rows[i].Key.Epoch == epoch {
			rs = append(rs, &rows[i])
		}
	}
	sort.SliceStable(rs, func(i, j int) bool {
		a, b := &rs[i].Key, &rs[j].Key
		if a.Kind != b.Kind {
			return a.Kind < b.Kind
		}
		if a.Attempt != b.Attempt {
			return a.Attempt < b.Attempt
		}
		return a.Deferrals < b.Deferrals
	})
	return rs
}
