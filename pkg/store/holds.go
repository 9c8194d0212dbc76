package store

import (
	"context"
	"slices"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/rows"
)

// HoldKey identifies a queue of holds: the notifications of one user that wait in one strict lane.
type HoldKey struct{ Lane, User string }

// HoldQueues stores the packed queue of each lane and user.
type HoldQueues interface {
	// Turn waits until no other Update of this process is between its Load and its Swap. It waits
	// only if the engine's Swap cannot detect a changed queue. In other engines it returns at once.
	// The caller must call the returned function end after its Swap.
	Turn(ctx context.Context) (end func(), err error)
	// Load returns the queues with the given keys, in the order of the keys. An empty queue is nil.
	Load(ctx context.Context, keys []HoldKey) ([][]byte, error)
	// Swap replaces the queues with the given keys. The parameter loaded has the old queues, as
	// Load returned them, and the parameter next has the new ones. If Swap detects that another
	// process has changed one of the queues, it stores nothing and returns false.
	Swap(ctx context.Context, keys []HoldKey, loaded, next [][]byte) (bool, error)
}

// Holds keeps a queue of waiting notifications for each lane and user.
type Holds struct{ queues HoldQueues }

// HoldsOver returns the Holds that are stored in q.
func HoldsOver(q HoldQueues) *Holds { return &Holds{q} }

// queueRecord packs a queue of holds. It omits the lane and the user, because they are the queue's key.
var queueRecord = Record[[]engine.Hold]{"a queue of holds", 1, func(c *codec.Codec, q *[]engine.Hold) {
	codec.Slice(c, q)
	for i := range *q {
		h := &(*q)[i]
		c.Raw(h.ID.Base[:])
		codec.Num(c, &h.ID.Index)
		c.Bool(&h.ID.FanOut)
		codec.Num(c, &h.Epoch)
		codec.Num(c, &h.Wake)
	}
}}

// load returns the queues with the given keys, packed and unpacked.
func (h *Holds) load(ctx context.Context, keys []HoldKey) ([][]byte, [][]engine.Hold, error) {
	packed, err := h.queues.Load(ctx, keys)
	if err != nil {
		return nil, nil, err
	}
	out := make([][]engine.Hold, len(keys))
	for i, v := range packed {
		if v == nil {
			continue
		}
		if err := queueRecord.Unpack(v, &out[i]); err != nil {
			return nil, nil, err
		}
		for k := range out[i] {
			out[i][k].Lane, out[i][k].User = keys[i].Lane, keys[i].User
		}
	}
	return packed, out, nil
}

// Update adds and removes holds in one commit. An engine with several machines may split a large
// update into several commits. A hold is identified by Lane, User, ID and Epoch. A new hold goes to
// the end of its user's queue. A hold that exists already keeps its place and gets the new Wake.
// Removing a hold that does not exist changes nothing.
func (h *Holds) Update(ctx context.Context, add, remove []engine.Hold) error {
	end, err := h.queues.Turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	all := slices.Concat(remove, add)
	places := map[HoldKey]int{} // index of a queue in keys
	var keys []HoldKey
	for _, x := range all {
		k := HoldKey{x.Lane, x.User}
		if _, ok := places[k]; !ok {
			places[k] = len(keys)
			keys = append(keys, k)
		}
	}
	for len(keys) > 0 {
		packed, queues, err := h.load(ctx, keys)
		if err != nil {
			return err
		}
		for i, x := range all {
			q := &queues[places[HoldKey{x.Lane, x.User}]]
			at := slices.IndexFunc(*q, func(o engine.Hold) bool { return o.ID == x.ID && o.Epoch == x.Epoch })
			switch {
			case i < len(remove) && at >= 0:
				*q = slices.Delete(*q, at, at+1)
			case i < len(remove):
			case at >= 0:
				(*q)[at] = x
			default:
				*q = append(*q, x)
			}
		}
		next := make([][]byte, len(keys))
		for i := range queues {
			if len(queues[i]) > 0 {
				next[i] = queueRecord.Pack(&queues[i])
			}
		}
		if won, err := h.queues.Swap(ctx, keys, packed, next); won || err != nil {
			return err
		}
	}
	return nil
}

// Get returns for each user of a lane the queue of holds. The hold to be sent next is first.
func (h *Holds) Get(ctx context.Context, lane string, users []string) ([][]engine.Hold, error) {
	keys := make([]HoldKey, len(users))
	for i, u := range users {
		keys[i] = HoldKey{lane, u}
	}
	_, out, err := h.load(ctx, keys)
	return out, err
}

// holdRows keeps one row for each lane and user.
type holdRows struct{ rows rows.Rows }

func (h holdRows) Turn(context.Context) (func(), error) { return func() {}, nil }

func (h holdRows) Load(ctx context.Context, keys []HoldKey) ([][]byte, error) {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = str(k.Lane) + k.User
	}
	return h.rows.Get(ctx, tableHolds, names...)
}

func (h holdRows) Swap(ctx context.Context, keys []HoldKey, loaded, next [][]byte) (bool, error) {
	c := rows.Change{Part: tableHolds}
	for i, k := range keys {
		name := str(k.Lane) + k.User
		c.Expect = append(c.Expect, rows.Row{Key: name, Value: loaded[i]})
		c.Set = append(c.Set, rows.Row{Key: name, Value: next[i]})
	}
	return h.rows.Swap(ctx, c)
}
