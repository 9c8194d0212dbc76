package simulator

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Arrival stands for N ids of one base that were delivered for the first time, directly after each
// other.
type Arrival struct {
	Base notify.Base
	At   time.Time // when the first of these ids came; the last id came at most arrivalWindow later
	N    uint32
}

const (
	arrivalBytes  = 16 + 8 + 4
	arrivalWindow = 100 * time.Microsecond
)

// ParseArrivals parses the rows of /ledger/arrivals. A row has 28 bytes: base, Unix nanoseconds and
// count. Numbers are little-endian. It returns an error if b does not consist of whole rows.
func ParseArrivals(b []byte) ([]Arrival, error) {
	if len(b)%arrivalBytes != 0 {
		return nil, fmt.Errorf("arrivals: %d bytes are not a multiple of the row length %d", len(b), arrivalBytes)
	}
	list := make([]Arrival, 0, len(b)/arrivalBytes)
	for ; len(b) > 0; b = b[arrivalBytes:] {
		list = append(list, Arrival{
			Base: notify.Base(b[:16]), At: time.Unix(0, int64(binary.LittleEndian.Uint64(b[16:]))), N: binary.LittleEndian.Uint32(b[24:]),
		})
	}
	return list, nil
}

// arrivalLog holds all arrivals in order. A cursor is the number of a row. The lock of the ledger
// guards all fields. Only the method write runs without the lock.
type arrivalLog struct {
	dir         string
	f           *os.File // nil until the first write
	onDisk      int64    // number of rows in f
	frozen      []byte   // rows that are being written to f; nothing changes them
	growing     []byte   // rows that were added after the frozen rows
	spare       []byte   // memory that is used next for growing
	lastRowOpen bool     // true: the last row may still grow, because no reader has seen it
}

func (a *arrivalLog) add(b notify.Base, at int64) {
	if n := len(a.growing) - arrivalBytes; a.lastRowOpen && n >= 0 && notify.Base(a.growing[n:n+16]) == b {
		row := a.growing[n:]
		if d := at - int64(binary.LittleEndian.Uint64(row[16:])); d >= 0 && d < int64(arrivalWindow) {
			binary.LittleEndian.PutUint32(row[24:], binary.LittleEndian.Uint32(row[24:])+1)
			return
		}
	}
	a.growing = append(a.growing, b[:]...)
	a.growing = binary.LittleEndian.AppendUint64(a.growing, uint64(at))
	a.growing = binary.LittleEndian.AppendUint32(a.growing, 1)
	a.lastRowOpen = true
}

func (a *arrivalLog) rows() int64 {
	return a.onDisk + int64(len(a.frozen)+len(a.growing))/arrivalBytes
}

func (a *arrivalLog) freeze() {
	a.frozen, a.growing, a.spare = a.growing, a.spare[:0], nil
}

// write appends the frozen rows to the file. Only one goroutine may call it at a time. The caller
// does not hold the lock.
func (a *arrivalLog) write() error {
	if a.f == nil {
		f, err := tempFile(a.dir)
		if err != nil {
			return err
		}
		a.f = f
	}
	_, err := a.f.WriteAt(a.frozen, a.onDisk*arrivalBytes)
	return err
}

func (a *arrivalLog) frozenWritten() {
	a.onDisk += int64(len(a.frozen)) / arrivalBytes
	a.spare, a.frozen = a.frozen, nil
}

// inMemory returns a copy of the rows in memory from the row at the cursor on, at most limit bytes.
// The row at the cursor must be in memory.
func (a *arrivalLog) inMemory(cursor int64, limit int) (out []byte) {
	a.lastRowOpen = false
	skip := int(cursor-a.onDisk) * arrivalBytes
	for _, part := range [][]byte{a.frozen, a.growing} {
		n := min(skip, len(part))
		skip -= n
		out = append(out, part[n:min(len(part), n+limit-len(out))]...)
	}
	return out
}

// maxArrivalsAnswer is the most bytes in an answer with arrivals.
const maxArrivalsAnswer = 150_000 * arrivalBytes
