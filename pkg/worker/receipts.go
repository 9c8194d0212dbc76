package worker

import (
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
)

// told settles the items of which a receipt says what became of an earlier
// call, and returns the others: a connection that was cut after the request was
// read, or a process that died, leaves a call nobody answered, and its receipt
// may be there long before the next one is due. False: the partition is gone.
//
// The rows are asked for by their keys, not by chunk: a chunk of a large fan-out
// has a receipt for every receiver.
func (r *round) told(items []notify.Item, refs []ref) ([]notify.Item, []ref, bool) {
	if len(items) == 0 || r.call.Channel == notify.Push || // whose providers send none
		!slices.ContainsFunc(r.parts, func(p *window) bool { return p.job.calledBefore(p.lo) }) {
		return items, refs, true
	}
	var keys []notify.RowKey
	end := make([]int, len(items)) // of an item's keys
	for i := range items {
		if r.parts[refs[i].part].job.calledBefore(refs[i].pos) {
			keys = receiptKeys(keys, &items[i])
		}
		end[i] = len(keys)
	}
	rows, err := r.parts[0].job.p.rows(keys, r.w.cfg.Status.Get)
	if err != nil {
		return items, refs, false
	}
	kept, keptRefs := items[:0], refs[:0]
	from := 0
	for i := range items {
		x := notify.Exception{Pos: refs[i].pos, Addr: items[i].Addr, Of: refs[i].of, Class: notify.ClassReceipt}
		for ; from < end[i]; from++ {
			said := &rows[from].Default
			if best := notify.BetterAddressState(x.State, said.State); best != x.State {
				x.State, x.Code, x.Provider, x.Receipt = best, said.Code, said.Provider, said.Receipt
			}
		}
		if x.State == notify.None {
			kept, keptRefs = append(kept, items[i]), append(keptRefs, refs[i])
			continue
		}
		r.add(refs[i].part, x)
	}
	return kept, keptRefs, true
}

// receiptKeys appends the keys of the receipts that could be about an item.
func receiptKeys(dst []notify.RowKey, item *notify.Item) []notify.RowKey {
	call := *item.Key
	for attempt := range item.Key.Attempt + 1 {
		call.Attempt = attempt
		dst = append(dst, notify.ReceiptKey(call, item.Index, item.Addr, notify.Delivered),
			notify.ReceiptKey(call, item.Index, item.Addr, notify.Failed))
	}
	return dst
}

// calledBefore reports whether an earlier call may have been made for a
// receiver, whatever came of it: also one that was answered with an error has
// been taken when a receipt says so.
func (j *job) calledBefore(pos uint32) bool {
	e := &j.env
	return pos < j.resumedTo || e.Attempt > 0 || strings.HasPrefix(e.Cause, causeCalled) || strings.HasPrefix(e.Cause, causeMaybe)
}
