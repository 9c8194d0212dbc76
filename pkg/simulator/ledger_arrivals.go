package simulator

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Arrival says that ids of one base were delivered for the first time, one after the
// other: of a fan-out so many of its receivers.
type Arrival struct {
	Base notify.Base
	At   time.Time // of the first of them; the last came arrivalWindow later at most
	N    uint32
}

const (
	arrivalBytes  = 16 + 8 + 4
	arrivalWindow = 100 * time.Microsecond
)

// ParseArrivals reads rows as /ledger/arrivals writes them: base, Unix nanoseconds and
// count, 28 bytes, numbers with the low byte first.
func ParseArrivals(b []byte) ([]Arrival, error) {
	if len(b)%arrivalBytes != 0 {
		return nil, fmt.Errorf("arrivals: %d bytes are no rows of %d", len(b), arrivalBytes)
	}
	list := make([]Arrival, 0, len(b)/arrivalBytes)
	for ; len(b) > 0; b = b[arrivalBytes:] {
		list = append(list, Arrival{
			Base: notify.Base(b[:16]), At: time.Unix(0, int64(binary.LittleEndian.Uint64(b[16:]))), N: binary.LittleEndian.Uint32(b[24:]),
		})
	}
	return list, nil
}

// arrivalLog is all arrivals in their order. The ledger's lock guards it, but for write.
// A cursor is a number of rows.
type arrivalLog struct {
	dir    string
	f      *os.File // nil until something is written
	onDisk int64    // rows
	frozen []byte   // being written
	tail   []byte
	spare  []byte
	open   bool // the last row may still grow: no reader has seen it
}

func (a *arrivalLog) add(b notify.Base, at int64) {
	if n := len(a.tail) - arrivalBytes; a.open && n >= 0 && notify.Base(a.tail[n:n+16]) == b {
		row := a.tail[n:]
		if d := at - int64(binary.LittleEndian.Uint64(row[16:])); d >= 0 && d < int64(arrivalWindow) {
			binary.LittleEndian.PutUint32(row[24:], binary.LittleEndian.Uint32(row[24:])+1)
			return
		}
	}
	a.tail = append(a.tail, b[:]...)
	a.tail = binary.LittleEndian.AppendUint64(a.tail, uint64(at))
	a.tail = binary.LittleEndian.AppendUint32(a.tail, 1)
	a.open = true
}

func (a *arrivalLog) rows() int64 {
	return a.onDisk + int64(len(a.frozen)+len(a.tail))/arrivalBytes
}

func (a *arrivalLog) freeze() {
	a.frozen, a.tail, a.spare = a.tail, a.spare[:0], nil
}

// write puts what is frozen behind what is on disk.
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

func (a *arrivalLog) written() {
	a.onDisk += int64(len(a.frozen)) / arrivalBytes
	a.spare, a.frozen = a.frozen, nil
}

// inMemory copies rows from a cursor on, up to most bytes.
func (a *arrivalLog) inMemory(from int64, most int) (out []byte) {
	a.open = false
	skip := int(from-a.onDisk) * arrivalBytes
	for _, part := range [][]byte{a.frozen, a.tail} {
		n := min(skip, len(part))
		skip -= n
		out = append(out, part[n:min(len(part), n+most-len(out))]...)
	}
	return out
}

// arrivalsMost bounds an answer with arrivals, in bytes.
const arrivalsMost = 150_000 * arrivalBytes
