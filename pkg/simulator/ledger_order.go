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

// userOrder is the highest sequence number seen of a user at an address, at a first
// attempt and at a first delivery. A first one below the highest came out of order.
type userOrder struct{ tried, taken uint64 }

// orderEvent is a first attempt, a first delivery or both, of a user at an address.
type orderEvent struct {
	key, seq        uint64
	firstTry, first bool
}

// next compares an event with what came before it.
func (was userOrder) next(e *orderEvent) (now userOrder, lateTry, late bool) {
	now = was
	if e.firstTry {
		now.tried = max(was.tried, e.seq)
	}
	if e.first {
		now.taken = max(was.taken, e.seq)
	}
	return now, e.firstTry && e.seq < was.tried, e.first && e.seq < was.taken
}

// userOrders holds the order of every user. While they fit, each event is compared when
// it comes. Later the users are in a file, ordered by key, and events wait in memory
// until there are so many that reading and writing the file once pays.
//
// The ledger's lock guards it, but for merge: it alone uses file and merging then.
type userOrders struct {
	dir   string
	most  int // users in memory
	batch int // events that wait

	users   map[uint64]userOrder // nil: they are in file
	file    *os.File
	inFile  int
	waiting []orderEvent
	merging []orderEvent
	err     error

	late, lateTries uint64
}

const orderRow = 3 * 8

func newUserOrders(dir string, budget int) *userOrders {
	return &userOrders{dir: dir, most: max(budget/64, 1), batch: max(budget/4/24, 1), users: map[uint64]userOrder{}}
}

// add takes an event. In memory it is compared at once, and was is what came before.
func (o *userOrders) add(e *orderEvent) (was userOrder, lateTry, late bool) {
	if o.users == nil {
		if o.err == nil {
			o.waiting = append(o.waiting, *e)
		}
		return was, false, false
	}
	was = o.users[e.key]
	o.users[e.key], lateTry, late = was.next(e)
	o.late += b2u(late)
	o.lateTries += b2u(lateTry)
	return was, lateTry, late
}

// full reports whether merge is due.
func (o *userOrders) full() bool {
	return o.err == nil && (len(o.users) > o.most || len(o.waiting) >= o.batch)
}

func (o *userOrders) pending() uint64 { return uint64(len(o.waiting) + len(o.merging)) }

// freeze begins a merge. The first one takes the users out of memory.
func (o *userOrders) freeze() (users map[uint64]userOrder) {
	users, o.users = o.users, nil
	o.merging, o.waiting = o.waiting, o.merging[:0]
	return users
}

// merged is what a merge found.
type mergedOrders struct {
	file            *os.File
	users           int
	late, lateTries uint64
}

// merge compares the events that were frozen with the users in the file, and writes the
// file anew; the first time it writes users.
func (o *userOrders) merge(users map[uint64]userOrder) (m mergedOrders, err error) {
	if m.file, err = tempFile(o.dir); err != nil {
		return m, err
	}
	out := bufio.NewWriterSize(m.file, 64<<10)
	row := make([]byte, orderRow)
	put := func(key uint64, u userOrder) error {
		for i, v := range []uint64{key, u.tried, u.taken} {
			binary.LittleEndian.PutUint64(row[8*i:], v)
		}
		m.users++
		_, err := out.Write(row)
		return err
	}
	next, err := o.old(users)
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
			now, lateTry, late = now.next(&events[0])
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

// old returns what reads the users so far, in order of their keys, and io.EOF behind
// the last one.
func (o *userOrders) old(users map[uint64]userOrder) (next func() (uint64, userOrder, error), err error) {
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

// took takes note of what a merge found. After an error events are compared no more.
func (o *userOrders) took(m mergedOrders, err error) {
	if err != nil {
		o.err = err
		return
	}
	if o.file != nil {
		_ = o.file.Close() // it was read, and is replaced
	}
	o.file, o.inFile, o.merging = m.file, m.users, o.merging[:0]
	o.late += m.late
	o.lateTries += m.lateTries
}
