// Package store implements the contracts of pkg/engine over rows.Rows. All engines that have such
// rows share this code: an engine embeds Contracts in its store. Start with Contracts and the
// tables below. Each contract has its own files.
//
// Most methods that change a row read the row, decide, and replace the row by a compare and swap.
// If another process has changed the row meanwhile, the method reads again. So such a method holds
// no lock. What it reads and returns is durable, because a Get waits for running swaps (see
// rows.Partitions). The methods of triggers take locks instead, see triggers.go. Outcome rows and
// the messages of queues are written without a comparison.
//
// Two changes may be answered before they are durable: the acknowledgement of a message of a queue,
// and a new end of the message's visibility timeout. If such a change is lost, the message is
// delivered again.
//
// If a value cannot be unpacked, a method returns notify.ErrCorrupt, or notify.ErrNewer if a newer
// release wrote the value.
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

// The tables. The tables of timers, queues and triggers are declared in their own files.
//
// Each table has a comment that describes its rows. For example, `"p"+user: version, profile` says
// that the key is the letter p followed by the user id, and that the value is a version followed by
// a profile. A key without a colon belongs to an index row, which has an empty value. str(x) is x
// with its length in two bytes before it. Numbers have 8 bytes, big-endian. The sign bit of a time
// is flipped, so that times sort as bytes. A table has one partition, unless its comment names more
// partitions.
var (
	// Keys and values of tableAudit:
	//
	//	"last": number of the last block
	//	In the partition of each block: seq: audit row
	tableAudit   = rows.Partition{Table: 'a'}
	tableCallers = rows.Partition{Table: 'u'} // caller id: settings of the caller
	tableMeta    = rows.Partition{Table: 'm'} // in the partition of each name: "v": value
	tableHolds   = rows.Partition{Table: 'h'} // str(lane)+user: the user's queue
	// Keys and values of tableStatus:
	//
	//	base+partition+block+epoch+attempt+deferrals+first+kind: outcome row
	tableStatus = rows.Partition{Table: 's'}
	// Keys and values of tablePrefs:
	//
	//	"p"+user: version, profile
	//	"n"+version: the user whose latest change has this version
	tablePrefs = rows.Partition{Table: 'p'}
	// Keys and values of tableCancels:
	//
	//	"n"+version: cancellation
	//	"s"+scope: version of the scope's first cancellation
	tableCancels = rows.Partition{Table: 'c'}
	// Keys and values of tableCampaigns:
	//
	//	"a"+time+id (index of all campaigns)
	//	"c"+str(caller)+time+id (index of a caller's campaigns)
	//	In the partition of each campaign, which is named by the campaign's id:
	//	"h": totals
	//	"p"+seq: base of a part, in the order in which the parts were added
	//	"s"+part (this part was counted)
	tableCampaigns = rows.Partition{Table: 'g'}
	// Keys and values of tableJobs:
	//
	//	id: kind and name of the job
	//	In the partition of each kind and name:
	//	"j": job
	//	"e"+at: entry of the job's report
	tableJobs = rows.Partition{Table: 'j'}
	// Keys and values of tableIdem:
	//
	//	"k"+str(caller)+str(route)+key: reservation
	//	"e"+expires+str(caller)+str(route)+key (index by expiry)
	tableIdem  = rows.Partition{Table: 'i'}
	tableSpill = rows.Partition{Table: 'z'} // seq: spilled record
	// Keys and values of tableLetters:
	//
	//	"i"+id: Ord of the dead letter
	//	"o"+Ord: dead letter
	//	"n": the last Ord
	//	"l"+^LastFailed+id (index, latest failure first)
	//	"e"+Until+id (index by end of retention)
	//	In the partition of each caller's feed (feedOf): Seq: id
	tableLetters = rows.Partition{Table: 'd'}
	// Keys and values of tableSchedules:
	//
	//	"s"+base: schedule
	//	"h"+base: head of the schedule
	//	"c"+str(caller)+base (index of a caller's schedules)
	//	"f"+last known fire time+base (index by fire time)
	tableSchedules = rows.Partition{Table: 'S'}
)

// Contracts implements the contracts of pkg/engine with rows.Rows.
type Contracts struct {
	rows    rows.Rows
	prefs   *Prefs
	spill   *Spill
	letters *letters
	status  *status

	triggers *triggers
	queues   queues
}

// OnRows returns the Contracts that store their data in r.
func OnRows(r rows.Rows) *Contracts {
	return &Contracts{
		rows: r, prefs: &Prefs{rows: r}, spill: &Spill{rows: r}, letters: &letters{rows: r}, status: newStatus(r),
		triggers: newTriggers(r), queues: queues{rows: r, byName: map[string]*queue{}},
	}
}

// Load reads the stored rows that triggers and queues keep in memory. If an engine's rows survive a
// restart of the process, the engine must call Load before any other method of a contract.
func (c *Contracts) Load(ctx context.Context) error {
	if err := c.triggers.load(ctx); err != nil {
		return err
	}
	return c.queues.load(ctx)
}

// Rows returns the rows in which the contracts store their data.
func (c *Contracts) Rows() rows.Rows { return c.rows }

// Status returns the contract of outcome rows.
func (c *Contracts) Status() engine.Status { return c.status }

// Audit returns the audit log.
func (c *Contracts) Audit() *Audit { return AuditOver(c.rows) }

// Cancels returns the contract of cancellations.
func (c *Contracts) Cancels() Cancels { return Cancels{c.rows} }

// Campaigns returns the store of campaigns.
func (c *Contracts) Campaigns() *Campaigns { return CampaignsOver(c.rows) }

// Jobs returns the store of the operators' jobs.
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

// DeadLetters returns the contract of dead letters.
func (c *Contracts) DeadLetters() engine.DeadLetters { return c.letters }

// Schedules returns the contract of scheduled requests.
func (c *Contracts) Schedules() engine.Schedules { return schedules{c} }

// Triggers returns the contract of triggers.
func (c *Contracts) Triggers() engine.Triggers { return c.triggers }

// Queue returns the delay queue with this name of at most 65,535 bytes. The first call creates the
// queue. Each message is delivered at most maxReceives times, a number from 1 to 65,535. Later
// calls with the same name return the same queue and ignore maxReceives.
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

// QueueBodies calls fn with the body of every message that is in the queue when QueueBodies begins,
// also of dead messages. The order is not defined. It omits messages that are acknowledged
// meanwhile. A body is valid until fn returns. QueueBodies needs 8 bytes of memory for each
// message.
func (c *Contracts) QueueBodies(ctx context.Context, name string, fn func(body []byte) error) error {
	return c.queues.get(name).eachBody(ctx, fn)
}

// Meta returns the table of names and values, which contains for example the identity of the store
// and the versions of formats.
func (c *Contracts) Meta() engine.Meta { return MetaOver(c.rows) }

// manyAtOnce is the maximum number of records that a purge or an import writes in one step.
const manyAtOnce = 1000

// maxPart is the maximum length, in bytes, of a string in a key that str has written.
const maxPart = 1<<16 - 1

func str(s string) string { return string(appendStr(make([]byte, 0, 2+len(s)), s)) }

func appendStr(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// cutStr splits b into the string at its beginning, which str wrote, and the rest. The result ok is
// false if b is too short.
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

// prefixEnd returns the least key that is greater than every key with this prefix. At least one
// byte of prefix must not be 0xff.
func prefixEnd(prefix string) string {
	b := []byte(prefix)
	for b[len(b)-1] == 0xff {
		b = b[:len(b)-1]
	}
	b[len(b)-1]++
	return string(b)
}

// contextEnded returns the error of a call whose context has ended.
func contextEnded(ctx context.Context) error {
	return notify.Unavailable("store", 0, context.Cause(ctx))
}

func num(n uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	return string(b[:])
}

// orderedTime encodes a time so that keys sort by time, even for times before 1970.
func orderedTime(ms int64) string { return num(uint64(ms) ^ 1<<63) }

func appendOrdered(b []byte, ms int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(ms)^1<<63)
}

// timeAt decodes the time at the beginning of a key.
func timeAt(key string) int64 { return int64(binary.BigEndian.Uint64([]byte(key[:8])) ^ 1<<63) }

// numberAt decodes the number at the end of a key.
func numberAt(key string) uint64 { return binary.BigEndian.Uint64([]byte(key[len(key)-8:])) }

// nonNil returns v, or an empty value if v is nil. A nil value would delete the row.
func nonNil(v []byte) []byte {
	if v == nil {
		return []byte{}
	}
	return v
}

// pack encodes a record as JSON. If that fails, it returns notify.KindInvalid with the error code
// in the parameter code.
func pack(code, what string, record any) ([]byte, error) {
	v, err := json.Marshal(record)
	if err != nil {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: code, Msg: "the " + what + " cannot be encoded as JSON", Err: err}
	}
	return v, nil
}

// unpack decodes a row whose value was made by pack.
func unpack[V any](r rows.Row) (v V, err error) {
	if json.Unmarshal(r.Value, &v) != nil {
		return *new(V), corrupt(r.Key)
	}
	return v, nil
}

// corrupt returns the error for a row that this package did not write.
func corrupt(key string) error {
	return notify.Corrupt("store", fmt.Sprintf("row %q", key))
}

// loadRecord returns the record with this key, and its stored bytes. The bytes are nil if there is
// no record.
func loadRecord[V any](ctx context.Context, r rows.Partitions, p rows.Partition, key string) (v V, stored []byte, err error) {
	got, err := r.Get(ctx, p, key)
	if err != nil || got[0] == nil {
		return v, nil, err
	}
	v, err = unpack[V](rows.Row{Key: key, Value: got[0]})
	return v, got[0], err
}

// scanList reads the first max rows of a range, calls decode with each row, and returns the results.
func scanList[V any](ctx context.Context, r rows.Scanner, p rows.Partition, in rows.Range, max int, decode func(rows.Row) (V, error)) (out []V, err error) {
	if max <= 0 {
		return nil, nil
	}
	err = r.Scan(ctx, p, in, func(row rows.Row) (bool, error) {
		v, err := decode(row)
		out = append(out, v)
		return len(out) < max, err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// getConcurrently calls get for each key, up to 16 calls at a time. It returns the values in the order
// of keys.
func getConcurrently[K, V any](keys []K, get func(K) (V, error)) ([]V, error) {
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

// durableNumber caches the number of the latest durable change of a partition, which a power loss
// cannot undo. The first call of the method get reads this number from the store. Each stored change
// sets it. mu guards the other fields.
type durableNumber struct {
	mu     sync.Mutex
	read   bool
	number uint64
}

// get returns the number. In the first call it gets the number from load.
func (s *durableNumber) get(load func() (uint64, error)) (_ uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.read {
		if s.number, err = load(); err != nil {
			return 0, err
		}
		s.read = true
	}
	return s.number, nil
}

func (s *durableNumber) set(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number = n
}

// purgeByTime removes up to maxRecords records, oldest first. It finds them by index rows in the
// partition p. The key of an index row consists of the prefix, a time, and the name of the record.
// purgeByTime reads the index rows with times up to maxTime page by page. For each page it calls
// remove, which returns the changes that remove the records of the page, and the number of records.
// If another process has changed a record of the page, purgeByTime calls remove again.
func purgeByTime(ctx context.Context, r rows.Rows, p rows.Partition, prefix string, maxTime int64, maxRecords int, remove func(entries []string) ([]rows.Change, int, error)) (total int, err error) {
	after := ""
	for total < maxRecords {
		var entries []string
		err := r.Scan(ctx, p, rows.Range{Prefix: prefix, After: after}, func(row rows.Row) (bool, error) {
			if timeAt(row.Key[len(prefix):]) > maxTime {
				return false, nil
			}
			entries = append(entries, row.Key)
			return len(entries) < min(manyAtOnce, maxRecords-total), nil
		})
		if err != nil || len(entries) == 0 {
			return total, err
		}
		cs, gone, err := remove(entries)
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

// errChanged returns the error for a record that was changed since the caller read it.
func errChanged(code, what string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: "the " + what + " was changed since it was read"}
}

// Timers returns the contract of timers.
func (c *Contracts) Timers() engine.Timers { return timers{hotTimers(c.rows)} }

// ColdTimers returns the contract of timers that fire more than 30 days from now.
func (c *Contracts) ColdTimers() engine.ColdTimers { return coldTimers(c.rows) }
