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

// RowKind says whether a row contains the outcomes of calls or a receipt. A receipt arrives after
// the call.
type RowKind uint8

const (
	// RowOutcome is written by the worker that processed the envelope.
	RowOutcome RowKind = iota
	// RowReceipt is a provider's delivery receipt. RowKey.First is the request index of its
	// receiver.
	RowReceipt
)

// ReceiptKey returns the row key of a receipt. The receipt reports the state s of one address. The
// parameter index is the request index of the receiver, and addr is the number of the address among
// the receiver's addresses. The parameter callKey is the row key of the envelope that made the
// call. Receipts arrive in any order, and the same receipt may arrive more than once. So each state
// of an address has its own row, and Fold decides which state counts.
func ReceiptKey(callKey RowKey, index uint32, addr uint8, s State) RowKey {
	callKey.Kind, callKey.First = RowReceipt, index
	callKey.Deferrals = uint16(addr)<<8 | uint16(s)
	return callKey
}

// Row holds the outcomes of one envelope: a default outcome, and the exceptions from it. The worker
// first writes the row as a claim: it raises StartedUpTo before it calls the provider. It writes the
// row for the last time with Done set. Each write replaces the row that has the same key.
type Row struct {
	Key    RowKey
	Count  uint32   // receivers of the envelope
	Digest uint64   // ColumnDigest of the envelope's receivers
	Index  []uint32 // request index of each position; nil for originals, whose envelopes hold the indexes

	DoneUpTo    uint32 // every position below has an outcome
	StartedUpTo uint32 // every position below may have been sent to a provider
	// Starts is how often the window at DoneUpTo was started. If Starts exceeds
	// worker.Config.MaxStarts, the worker calls the window's receivers in solo runs.
	Starts uint16
	Done   bool // every position has an outcome

	// Resent counts receivers that were sent to a provider a second time, although the provider may
	// have accepted the first call. It is the exact upper bound of duplicates.
	Resent uint32

	Default    Exception   // outcome of each position below DoneUpTo without an exception; its Pos and Addr are not used
	Exceptions []Exception // ordered by Pos and then Addr; for an exception at DoneUpTo see DeferredAt

	Caller   string
	Campaign string
	Channel  Channel
	Category Category
	Accepted int64 // when the request was accepted, ms since 1970
	Updated  int64 // when this row was written, ms since 1970
	Topic    string
	LogPart  int32 // LogPart and Offset: where the envelope is in the log
	Offset   int64

	// Stamp orders the writes of the row (engine.Tenure). It is not stored: a row that was read has
	// Stamp 0. If Stamp is 0, the last write wins.
	Stamp int64

	// Damaged holds the stored bytes of a row that cannot be decoded (engine.Status.Resume). In such a
	// row only Key and Damaged are set. nil: the row was decoded.
	Damaged []byte
}

// Exception is the outcome of one receiver that differs from the row's default outcome. Pos is the
// receiver's position in the envelope. If the receiver has several addresses, an Exception is the
// outcome of one address.
type Exception struct {
	Pos      uint32
	Addr     uint8 // ordinal of the address; 0 for the first or only address
	Of       uint8 // number of addresses tried; 0 and 1 both mean one address
	State    State
	Retry    bool   // only in State Deferred: the next envelope is a retry (attempt + 1) if true, and a deferral if false
	Wake     int64  // only in State Deferred: time of the next envelope, ms since 1970
	Class    Class  // class of the provider's last answer; ClassAccepted if there was no call
	Code     string // reason, such as "apns_unregistered", "opted_out", "no_address"
	Provider string // the provider and account that answered
	Receipt  string // the provider's id of the message
}

// ExceptionsAt returns the exceptions of the receiver at a position.
func (r *Row) ExceptionsAt(pos uint32) []Exception {
	lo := sort.Search(len(r.Exceptions), func(i int) bool { return r.Exceptions[i].Pos >= pos })
	hi := lo
	for hi < len(r.Exceptions) && r.Exceptions[hi].Pos == pos {
		hi++
	}
	return r.Exceptions[lo:hi]
}

// DeferredAt returns why the receiver at a position waits in a worker. The result ok is false if
// the row does not say that the receiver waits.
//
// The positions from DoneUpTo to StartedUpTo are claimed. If the worker cannot call the provider
// for them yet, it writes one exception at position DoneUpTo with the state Deferred. This
// exception gives the reason for all of these positions. It is not an outcome: the receivers stay
// in this envelope, and there is no envelope for a retry or a deferral.
func (r *Row) DeferredAt(pos uint32) (x Exception, ok bool) {
	if r.Done || pos < r.DoneUpTo || pos >= r.StartedUpTo {
		return x, false
	}
	if ex := r.ExceptionsAt(r.DoneUpTo); len(ex) == 1 && ex[0].State == Deferred {
		return ex[0], true
	}
	return x, false
}

// PosOf returns the position of the receiver with this request index. The row must have its field
// Index set.
func (r *Row) PosOf(index uint32) (uint32, bool) {
	i := sort.Search(len(r.Index), func(i int) bool { return r.Index[i] >= index })
	return uint32(i), i < len(r.Index) && r.Index[i] == index
}

// Outcome is the result of Fold for one receiver.
type Outcome struct {
	State   State
	Epoch   uint16
	Attempt uint16 // attempt of the row that decided the state
	Code    string
	Updated int64 // ms since 1970; 0 while no row exists
}

// StateOf returns the same state as Fold. Most chunks have one row without an exception for the
// receiver. For such a chunk StateOf takes only a few nanoseconds.
func StateOf(rows []Row, index, pos uint32) State {
	if len(rows) == 1 {
		r := &rows[0]
		settled := r.Done || pos < r.DoneUpTo
		if r.Key.Kind == RowOutcome && r.Index == nil && pos < r.Count && settled && len(r.ExceptionsAt(pos)) == 0 {
			return r.Default.State
		}
	}
	return Fold(rows, index, pos).State
}

// Fold computes the state of one receiver from all rows of its chunk. The rows may be in any order.
// The parameter index is the receiver's request index, and pos is its position in the original
// chunk. Only the rows of the highest epoch count.
//
// A receiver may have several addresses. Of several reports about one address, Fold uses the report
// that BetterAddressState chooses. From the addresses it computes the receiver's state as
// FoldAddresses does: Deferred while any address waits.
//
// If an address is Deferred in a row, a later envelope continues with the address, and the row of
// that envelope replaces the state. A receipt can change the states Sent and Unknown, and can change
// Failed to Delivered.
//
// While a row is not done, Fold ignores its exceptions at and after position DoneUpTo, even those
// of windows that finished before an earlier window. If DeferredAt says that the receiver waits,
// the state is Deferred, unless another row decides the state.
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
	count, whole := 0, None // whole: the state of the whole receiver if no call was made, or None
	var wholeCode string
	var held *Row // held: the row for which DeferredAt says why the receiver waits
	var waits Exception
	for _, r := range rowsInOrder(rows, uint16(epoch)) {
		p, ok := r.position(index, pos)
		if !ok {
			continue
		}
		if p >= r.DoneUpTo && !r.Done {
			if x, ok := r.DeferredAt(p); ok {
				held, waits = r, x
				out.Updated = max(out.Updated, r.Updated)
			}
			continue
		}
		out.Updated = max(out.Updated, r.Updated)
		ex := r.ExceptionsAt(p)
		if len(ex) == 0 {
			ex = []Exception{r.Default}
			ex[0].Pos, ex[0].Addr = p, 0
		}
		if r.Key.Kind == RowOutcome {
			// This row's envelope continued with the addresses that were Deferred in earlier rows.
			// So the row replaces the state of each such address: by the outcome of the address, or
			// by the outcome of the whole receiver. An address that the row does not mention has no
			// state any more.
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
				continue // an outcome of the whole receiver; the loop above applied it to the addresses
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

// addressState returns the state of the address with the ordinal addr. The parameter ex holds the
// exceptions of its receiver. addressState returns None if the exceptions do not mention the
// address, or if no call was made.
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

// position returns the receiver's position in the envelope of the row r. The second result is false
// if the receiver is not in the envelope.
func (r *Row) position(index, pos uint32) (uint32, bool) {
	switch {
	case r.Key.Kind == RowReceipt:
		return 0, r.Key.First == index
	case len(r.Index) > 0:
		return r.PosOf(index)
	}
	return pos, pos < r.Count
}

// rowsInOrder returns the rows of an epoch in the order in which their envelopes were made. Receipts
// are last.
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
