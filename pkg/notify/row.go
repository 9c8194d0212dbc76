package notify

import "sort"

// RowKey names an outcome row: what became of the receivers of one envelope.
type RowKey struct {
	Chunk     Chunk
	Epoch     uint16
	Attempt   uint16
	Deferrals uint16
	First     uint32 // request index of the first receiver of a derived envelope
	Kind      RowKind
}

// RowKind tells outcomes of our own calls from news that came later.
type RowKind uint8

const (
	// RowOutcome is written by the worker that handled the envelope.
	RowOutcome RowKind = iota
	// RowReceipt is a provider's delivery receipt for one receiver (First).
	RowReceipt
)

// ReceiptKey names the row of a receipt that says state s of one address of the
// receiver with this request index, called by the envelope of key call. Receipts
// come in any order and more than once: each state of an address has a row of
// its own, and the fold says which holds.
func ReceiptKey(call RowKey, index uint32, addr uint8, s State) RowKey {
	call.Kind, call.First = RowReceipt, index
	call.Deferrals = uint16(addr)<<8 | uint16(s)
	return call
}

// Row is the outcome of one envelope: a default state and the exceptions. A
// worker first writes it as a claim (StartedUpTo moves before the provider is
// called), last with Done set; the same key is overwritten, nothing is deleted.
type Row struct {
	Key    RowKey
	Count  uint32   // receivers of the envelope
	Digest uint64   // ColumnDigest of its receivers
	Index  []uint32 // request index per position; nil for originals, whose chunk body holds them

	DoneUpTo    uint32 // positions below have an outcome
	StartedUpTo uint32 // positions below may have been handed to a provider
	Starts      uint16 // how often the window at DoneUpTo was started; above worker.Config.MaxStarts its receivers run solo
	Done        bool   // every position has an outcome

	// Resent counts receivers that were handed to a provider again although an
	// earlier call may have been taken: the bound of duplicates, exactly.
	Resent uint32

	Default    Exception   // outcome of positions below DoneUpTo that have no exception; its Pos and Addr mean nothing
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

	// Stamp orders the writes of the row (engine.Tenure). It is no part of what is
	// stored: rows that are read have none. 0 means that the last write stands.
	Stamp int64

	// Damaged holds the stored bytes of a row that cannot be decoded, and nothing
	// else but Key is set (engine.Status.Resume). Nil: the row is whole.
	Damaged []byte
}

// Exception is the outcome of one position, or of one of its addresses, that
// is not the row's default.
type Exception struct {
	Pos      uint32
	Addr     uint8 // ordinal of the address, 0 for the first or only one
	Of       uint8 // number of addresses tried; 0 and 1 mean one
	State    State
	Retry    bool   // State Deferred: goes on as a retry (attempt + 1), else as a deferral
	Wake     int64  // State Deferred: when it goes on, ms since 1970
	Class    Class  // of the provider's last answer; ClassAccepted where there was no call
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

// Waits returns what the receiver at pos waits for while its worker holds it:
// it is started, and its provider cannot be called. The worker says so for all
// such positions in one Deferred exception at DoneUpTo, where a row that is not
// done can have no outcome. It is a remark for readers: nothing was handed on.
func (r *Row) Waits(pos uint32) (x Exception, ok bool) {
	if r.Done || pos < r.DoneUpTo || pos >= r.StartedUpTo {
		return x, false
	}
	if ex := r.At(r.DoneUpTo); len(ex) == 1 && ex[0].State == Deferred {
		return ex[0], true
	}
	return x, false
}

// PosOf returns the position of the receiver with this request index, for rows
// that list their receivers.
func (r *Row) PosOf(index uint32) (uint32, bool) {
	i := sort.Search(len(r.Index), func(i int) bool { return r.Index[i] >= index })
	return uint32(i), i < len(r.Index) && r.Index[i] == index
}

// Outcome is what the fold says of one receiver.
type Outcome struct {
	State   State
	Epoch   uint16
	Attempt uint16 // of the row that decided
	Code    string
	Updated int64 // ms since 1970; 0 while nothing happened
}

// StateOf returns the state that Fold finds. Of most chunks one row without exceptions
// says it, which costs a few nanoseconds.
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

// Fold returns the state of the receiver with request index index, whose
// position in the original chunk is pos, from all rows of its chunk in any
// order. The highest epoch wins; within it, per address the best report, and
// over the addresses the best address; a receiver that is still waiting
// somewhere is Deferred.
//
// (A row that is not done may hold exceptions behind DoneUpTo, of windows that
// finished early; they are ignored. What it says its receivers wait for makes
// them Deferred as long as nothing else does.)
//
// A row that handed a receiver on (Deferred) is answered by the row of the
// envelope it handed it to, so only the latest (attempt, deferrals) of an
// epoch speaks, and receipts speak about what was Sent or Unknown.
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
	count, whole := 0, None // whole: an outcome of the receiver without a call
	var wholeCode string
	var held *Row // says what the receiver waits for, in waits
	var waits Exception
	for _, r := range inOrder(rows, uint16(epoch)) {
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
			// What was handed to this row's envelope is answered by it: by an
			// outcome of the address, by one of the whole receiver, or, for an
			// address it left out, by nothing.
			for a := range addrs[:count] {
				if addrs[a] == Deferred {
					addrs[a] = answer(ex, uint8(a))
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
				continue // of the receiver, and said above
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

// answer is what the outcomes of a receiver say of its address addr.
func answer(ex []Exception, addr uint8) State {
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

// position returns where the receiver stands in r's envelope.
func (r *Row) position(index, pos uint32) (uint32, bool) {
	switch {
	case r.Key.Kind == RowReceipt:
		return 0, r.Key.First == index
	case len(r.Index) > 0:
		return r.PosOf(index)
	}
	return pos, pos < r.Count
}

// inOrder returns the rows of an epoch as they happened.
func inOrder(rows []Row, epoch uint16) []*Row {
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
