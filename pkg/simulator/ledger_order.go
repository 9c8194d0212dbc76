package simulator

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
)

// userOrder holds two sequence numbers of a user at an address: the highest of all first attempts,
// and the highest of all first deliveries. If a later first attempt or delivery has a lower number,
// it is out of order.
type userOrder struct{ highestTried, highestTaken uint64 }

// orderEvent is about a message to a user at an address. It is the first attempt to send the
// message, its first delivery, or both.
type orderEvent struct {
	key, seq                uint64
	firstTry, firstDelivery bool
}

// compare compares e with the earlier events of its user. The result now is the new state of the
// user. The result lateTry is true if the attempt is out of order, and late is true if the delivery
// is out of order.
func (was userOrder) compare(e *orderEvent) (now userOrder, lateTry, late bool) {
	now = was
	if e.firstTry {
		now.highestTried = max(was.highestTried, e.seq)
	}
	if e.firstDelivery {
		now.highestTaken = max(was.highestTaken, e.seq)
	}
	return now, e.firstTry && e.seq < was.highestTried, e.firstDelivery && e.seq < was.highestTaken
}

// userOrders holds the order of every user. While all users fit into memory, each event is compared
// as soon as it comes. Later the users are in a file, sorted by key. Then events wait in memory
// until there are so many that it pays to read and write the whole file once.
//
// The lock of the ledger guards all fields. Only the method merge runs without the lock: between
// the calls of freeze and mergeEnded, it alone uses the fields file and merging.
type userOrders struct {
	dir         string
	maxInMemory int // largest number of users in memory
	mergeAt     int // number of waiting events at which a merge is due

	users   map[uint64]userOrder // nil: the users are in the file
	file    *os.File
	inFile  int // number of users in the file
	waiting []orderEvent
	merging []orderEvent // events that are compared by the merge in progress
	err     error        // first error of a merge

	late, lateTries uint64 // number of deliveries and of attempts that came out of order
}

const orderRow = 3 * 8

func newUserOrders(dir string, budget int) *userOrders {
	return &userOrders{dir: dir, maxInMemory: max(budget/64, 1), mergeAt: max(budget/4/24, 1), users: map[uint64]userOrder{}}
}

// addEvent adds an event. If the users are in memory, it compares the event at once, and the result
// before is the state that the user had until then. Otherwise the event waits for a merge, and the
// results are zero.
func (o *userOrders) addEvent(e *orderEvent) (before userOrder, lateTry, late bool) {
	if o.users == nil {
		if o.err == nil {
			o.waiting = append(o.waiting, *e)
		}
		return before, false, false
	}
	before = o.users[e.key]
	o.users[e.key], lateTry, late = before.compare(e)
	o.late += b2u(late)
	o.lateTries += b2u(lateTry)
	return before, lateTry, late
}

// mergeDue returns true if it is time for a merge.
func (o *userOrders) mergeDue() bool {
	return o.err == nil && (len(o.users) > o.maxInMemory || len(o.waiting) >= o.mergeAt)
}

func (o *userOrders) pending() uint64 { return uint64(len(o.waiting) + len(o.merging)) }

// freeze begins a merge: the waiting events become the events to merge. At the first merge the
// users are still in memory; then freeze removes and returns them.
func (o *userOrders) freeze() (users map[uint64]userOrder) {
	users, o.users = o.users, nil
	o.merging, o.waiting = o.waiting, o.merging[:0]
	return users
}

// mergedOrders is the result of a merge.
type mergedOrders struct {
	file            *os.File
	users           int
	late, lateTries uint64
}

// merge compares the frozen events with the users, and writes the users to a new file. At the first
// merge it gets the users from the parameter users. At later merges it reads them from the old
// file.
func (o *userOrders) merge(users map[uint64]userOrder) (m mergedOrders, err error) {
	if m.file, err = tempFile(o.dir); err != nil {
		return m, err
	}
	out := bufio.NewWriterSize(m.file, 64<<10)
	row := make([]byte, orderRow)
	put := func(key uint64, u userOrder) error {
		for i, v := range []uint64{key, u.highestTried, u.highestTaken} {
			binary.LittleEndian.PutUint64(row[8*i:], v)
		}
		m.users++
		_, err := out.Write(row)
		return err
	}
	next, err := o.reader(users)
	if err != nil {
		return m, err
	}
	events := o.merging
	slices.SortStableFunc(events, func(a, b orderEvent) int { return cmp.Compare(a.key, b.key) })
	key, u, err := next()
	for err == nil || errors.Is(err, io.EOF) && len(events) > 0 {
		now, k := userOrder{}, uint64(0)
		if err == nil {
			now, k = u, key
		}
		if len(events) > 0 && (err != nil || events[0].key < k) {
			now, k = userOrder{}, events[0].key
		} else {
			key, u, err = next()
		}
		for ; len(events) > 0 && events[0].key == k; events = events[1:] {
			var lateTry, late bool
			now, lateTry, late = now.compare(&events[0])
			m.late += b2u(late)
			m.lateTries += b2u(lateTry)
		}
		if err := put(k, now); err != nil {
			return m, err
		}
	}
	if !errors.Is(err, io.EOF) {
		return m, err
	}
	return m, out.Flush()
}

// reader returns a function that reads the users in the order of their keys. After the last user it
// returns io.EOF.
func (o *userOrders) reader(users map[uint64]userOrder) (next func() (uint64, userOrder, error), err error) {
	if users != nil {
		keys := make([]uint64, 0, len(users))
		for k := range users {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		return func() (uint64, userOrder, error) {
			if len(keys) == 0 {
				return 0, userOrder{}, io.EOF
			}
			k := keys[0]
			keys = keys[1:]
			return k, users[k], nil
		}, nil
	}
	if _, err := o.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	in, row := bufio.NewReaderSize(o.file, 64<<10), make([]byte, orderRow)
	return func() (uint64, userOrder, error) {
		_, err := io.ReadFull(in, row)
		le := binary.LittleEndian
		return le.Uint64(row), userOrder{le.Uint64(row[8:]), le.Uint64(row[16:])}, err
	}, nil
}

// mergeEnded takes over the result of a merge: the new file and the counts. If the merge failed, no
// further events are compared.
func (o *userOrders) mergeEnded(m mergedOrders, err error) {
	if err != nil {
		o.err = err
		return
	}
	if o.file != nil {
		_ = o.file.Close() // an error does not matter: the old file was only read, and the new file replaces it
	}
	o.file, o.inFile, o.merging = m.file, m.users, o.merging[:0]
	o.late += m.late
	o.lateTries += m.lateTries
}
