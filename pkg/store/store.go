// Package store implements contracts of pkg/engine over rows.Rows, once for every
// engine that has such rows. An engine embeds Contracts in its store.
//
// A method that changes a row reads it, decides, and swaps the row it has read for the
// new one. If another was faster it reads again. So no method holds a lock, and what
// it answers is durable: see rows.Rows.Get. Triggers are the exception: see there.
//
// Two things are not durable when they are answered, because losing them only repeats a
// delivery: an acknowledgement of a message of a queue, and until when somebody has it.
package store

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// Tables; each has one partition, unless its comment names more. Those of timers, queues
// and triggers are in their files. The comment says its keys and values: str is two
// bytes of length and the bytes, and numbers are 8 bytes, big-endian. Times have their
// sign bit flipped. Where no value is named it is empty: the row is of an index.
var (
	tableAudit   = rows.Part{Table: 'a'} // last: number of the last block; of the partition of each block: seq: row
	tableCallers = rows.Part{Table: 'u'} // caller: caller
	tableMeta    = rows.Part{Table: 'm'} // of the partition of each name: v: value
	tableHolds   = rows.Part{Table: 'h'} // str lane, user: the user's queue
	// base, partition, block, epoch, attempt, deferrals, first, kind: outcome row
	tableStatus = rows.Part{Table: 's'}
	// p, user: version, profile; n, version: the user whose latest change it is
	tablePrefs = rows.Part{Table: 'p'}
	// n, version: cancellation; s, scope: its version
	tableCancels = rows.Part{Table: 'c'}
	// a, time, id; c, str caller, time, id. Of the partition of each campaign, which has
	// its id: h: totals; p, seq: base of a part, in the order they came; s, part: the
	// part was counted
	tableCampaigns = rows.Part{Table: 'g'}
	// id: its kind and name. Of the partition of each kind and name: j: job;
	// e, at: entry of its report
	tableJobs = rows.Part{Table: 'j'}
	// k, str caller, str route, key: reservation; e, expires, str caller, str route, key
	tableIdem  = rows.Part{Table: 'i'}
	tableSpill = rows.Part{Table: 'z'} // seq: spilled record
	// i, id: Ord; o, Ord: dead letter; n: the last Ord; l, time of ^LastFailed, id;
	// e, Until, id. Of the partitions of feedOf: Seq: id
	tableLetters = rows.Part{Table: 'd'}
	// s, base: schedule; c, str caller, base; f, last known fire time, base; h, base: head
	tableSchedules = rows.Part{Table: 'S'}
)

// Contracts are the contracts over rows.
type Contracts struct {
	rows    rows.Rows
	prefs   *Prefs
	spill   *Spill
	letters *letters
	status  *status

	triggers *triggers
	queues   queues
}

// Over returns the contracts over r.
func Over(r rows.Rows) *Contracts {
	return &Contracts{
		rows: r, prefs: &Prefs{rows: r}, spill: &Spill{rows: r}, letters: &letters{rows: r}, status: newStatus(r),
		triggers: newTriggers(r), queues: queues{rows: r, byName: map[string]*queue{}},
	}
}

// Load reads what triggers and queues keep in memory of what is stored. An engine that
// keeps rows longer than its process calls it before any method of a contract.
func (c *Contracts) Load(ctx context.Context) error {
	if err := c.triggers.load(ctx); err != nil {
		return err
	}
	return c.queues.load(ctx)
}

// Rows returns what the contracts are over.
func (c *Contracts) Rows() rows.Rows { return c.rows }

// Status returns the contract of outcome rows.
func (c *Contracts) Status() engine.Status { return c.status }

// Audit returns the audit log.
func (c *Contracts) Audit() *Audit { return AuditOver(c.rows) }

// Cancels returns the contract of cancellations.
func (c *Contracts) Cancels() Cancels { return Cancels{c.rows} }

// Campaigns returns the campaigns.
func (c *Contracts) Campaigns() *Campaigns { return CampaignsOver(c.rows) }

// Jobs returns the operations jobs.
func (c *Contracts) Jobs() *Jobs { return JobsOver(c.rows) }

// Holds returns the holds of strict lanes.
func (c *Contracts) Holds() *Holds { return HoldsOver(holdRows{c.rows}) }

// Callers returns the contract of callers.
func (c *Contracts) Callers() engine.Callers { return callers{c.rows} }

// Prefs returns the contract of profiles.
func (c *Contracts) Prefs() *Prefs { return c.prefs }

// Idem returns the contract of idempotency keys.
func (c *Contracts) Idem() Idem { return Idem{c.rows} }

// Spill returns the contract of the spill buffer.
func (c *Contracts) Spill() *Spill { return c.spill }

// DeadLetters returns the contract of what failed for good.
func (c *Contracts) DeadLetters() engine.DeadLetters { return c.letters }

// Schedules returns the contract of scheduled requests.
func (c *Contracts) Schedules() engine.Schedules { return schedules{c} }

// Triggers returns the contract of triggers.
func (c *Contracts) Triggers() engine.Triggers { return c.triggers }

// Queue returns the delay queue of a name of at most 65,535 bytes, made when it
// is asked for the first time. Its messages are given out at most maxReceives
// times, 1 to 65,535. The same name is the same queue, with the maxReceives of
// the first call.
func (c *Contracts) Queue(name string, maxReceives int) engine.Queue {
	q := c.queues.get(name)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.maxReceives == 0 {
		q.maxReceives = min(max(maxReceives, 1), maxCounted)
		q.countUnwrittenLocked()
	}
	return q
}

// QueueBodies calls fn with every message of the queue of a name that is there
// when it begins and has not been acknowledged since, dead ones included, in no
// order. A body is valid until fn returns. Memory is 8 bytes a message.
func (c *Contracts) QueueBodies(ctx context.Context, name string, fn func(body []byte) error) error {
	return c.queues.get(name).all(ctx, fn)
}

// Meta returns the table of identity and versions.
func (c *Contracts) Meta() engine.Meta { return MetaOver(c.rows) }

// manyAtOnce bounds the records that a purge or an import writes at once.
const manyAtOnce = 1000

// maxPart bounds a part of a key that other parts follow.
const maxPart = 1<<16 - 1

func str(s string) string { return string(appendStr(make([]byte, 0, 2+len(s)), s)) }

func appendStr(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// cutStr returns the text that str has put before rest.
func cutStr(b string) (s, rest string, ok bool) {
	if len(b) < 2 {
		return "", "", false
	}
	n := 2 + (int(b[0])<<8 | int(b[1]))
	if len(b) < n {
		return "", "", false
	}
	return b[2:n], b[n:], true
}

// following returns the first key behind every key that begins with prefix, which has
// bytes that are not 0xff.
func following(prefix string) string {
	b := []byte(prefix)
	for b[len(b)-1] == 0xff {
		b = b[:len(b)-1]
	}
	b[len(b)-1]++
	return string(b)
}

// ended is the error of a call whose context has ended.
func ended(ctx context.Context) error { return notify.Unavailable("store", 0, context.Cause(ctx)) }

func num(n uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	return string(b[:])
}

// ordered is a time in the order of times.
func ordered(ms int64) string { return num(uint64(ms) ^ 1<<63) }

func appendOrdered(b []byte, ms int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(ms)^1<<63)
}

// timeAt reads the time that a key begins with.
func timeAt(key string) int64 { return int64(binary.BigEndian.Uint64([]byte(key[:8])) ^ 1<<63) }

// numberAt reads the number that a key ends with.
func numberAt(key string) uint64 { return binary.BigEndian.Uint64([]byte(key[len(key)-8:])) }

// present returns v as the value of a row that is there.
func present(v []byte) []byte {
	if v == nil {
		return []byte{}
	}
	return v
}

// pack returns the value of a record. It fails with notify.KindInvalid and code if the
// record has no JSON form.
func pack(code, what string, record any) ([]byte, error) {
	v, err := json.Marshal(record)
	if err != nil {
		return nil, notify.Invalid(code, "", "the "+what+" cannot be stored")
	}
	return v, nil
}

// unpack reads what pack returned.
func unpack[V any](r rows.Row) (v V, err error) {
	if json.Unmarshal(r.Value, &v) != nil {
		return *new(V), corrupt(r.Key)
	}
	return v, nil
}

// corrupt reports a row that this package did not write.
func corrupt(key string) error {
	return notify.Corrupt("store", fmt.Sprintf("row %q", key))
}

// load returns the record that is stored under a key, and its value; nil: there is none.
func load[V any](ctx context.Context, r rows.Partitions, p rows.Part, key string) (v V, stored []byte, err error) {
	got, err := r.Get(ctx, p, key)
	if err != nil || got[0] == nil {
		return v, nil, err
	}
	v, err = unpack[V](rows.Row{Key: key, Value: got[0]})
	return v, got[0], err
}

// list returns the first max records of a range, as read reads them.
func list[V any](ctx context.Context, r rows.Scanner, p rows.Part, in rows.Range, max int, read func(rows.Row) (V, error)) (out []V, err error) {
	if max <= 0 {
		return nil, nil
	}
	err = r.Scan(ctx, p, in, func(row rows.Row) (bool, error) {
		v, err := read(row)
		out = append(out, v)
		return len(out) < max, err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// together calls get with each key, some at a time, and returns the values in the order
// of keys.
func together[K, V any](keys []K, get func(K) (V, error)) ([]V, error) {
	out := make([]V, len(keys))
	var g errgroup.Group
	g.SetLimit(16)
	for i, key := range keys {
		g.Go(func() (err error) {
			out[i], err = get(key)
			return err
		})
	}
	return out, g.Wait()
}

// settled is the number of the latest change of a partition that a loss of power cannot
// take back. It is read before the first change, and set when one is stored.
type settled struct {
	mu     sync.Mutex
	read   bool
	number uint64
}

// get returns the number. It calls read at first.
func (s *settled) get(read func() (uint64, error)) (_ uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.read {
		if s.number, err = read(); err != nil {
			return 0, err
		}
		s.read = true
	}
	return s.number, nil
}

func (s *settled) set(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number = n
}

// purge works off an index by time: rows of p whose keys are prefix, a time and a rest.
// It calls change with the keys of some rows whose time is until or earlier, in their
// order, until most records are removed. change returns what removes the records of
// those rows, and how many they are. It is called again if one was changed meanwhile.
func purge(ctx context.Context, r rows.Rows, p rows.Part, prefix string, until int64, most int, change func(entries []string) ([]rows.Change, int, error)) (total int, err error) {
	after := ""
	for total < most {
		var entries []string
		err := r.Scan(ctx, p, rows.Range{Prefix: prefix, After: after}, func(row rows.Row) (bool, error) {
			if timeAt(row.Key[len(prefix):]) > until {
				return false, nil
			}
			entries = append(entries, row.Key)
			return len(entries) < min(manyAtOnce, most-total), nil
		})
		if err != nil || len(entries) == 0 {
			return total, err
		}
		cs, gone, err := change(entries)
		if err != nil {
			return total, err
		}
		won, err := r.Swap(ctx, cs...)
		if err != nil {
			return total, err
		}
		if won {
			total, after = total+gone, entries[len(entries)-1]
		}
	}
	return total, nil
}

// changed is the error of a record whose version is not the one that was read.
func changed(code, what string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: "the " + what + " was changed since it was read"}
}

// Timers returns the contract of timers.
func (c *Contracts) Timers() engine.Timers { return timers{hotTimers(c.rows)} }

// ColdTimers returns the contract of timers far ahead.
func (c *Contracts) ColdTimers() engine.ColdTimers { return coldTimers(c.rows) }
