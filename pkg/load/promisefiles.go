package load

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// promiseFiles holds promises and arrivals that do not fit into memory. Their base decides the file
// (part), so a promise and its arrivals are in the same file. Each file is deleted right after it
// is opened. So the disk gets the space back even if the process is killed. promises.joining guards
// promiseFiles.
type promiseFiles struct {
	parts   [promiseParts]promisePart
	steps   []*stepRun          // element i is the step with the number i in the files
	numbers map[*stepRun]uint32 // the number of each step in the files
}

type promisePart struct {
	f     *os.File
	w     *bufio.Writer
	size  int64
	dirty bool // true: rows were written since the part was last matched
}

// promiseParts is the number of parts. Each part fits into memory, even with 1e9 open promises.
const promiseParts = 256

// promiseRow is the length of a row in bytes. A row holds a promise or an arrival. These are its
// fields in order, named as in the types promise and arrival:
//
//	bytes  promise             arrival
//	16     base                base
//	4      number of the step  1<<31 + ledger
//	8      intended            0
//	8      scheduledAt         at
//	4      count               n
//	4      rejected            0
//	4      came                0
//	8      ledgers             0
const (
	promiseRow  = 16 + 4 + 8 + 8 + 4 + 4 + 4 + 8
	arrivalFlag = 1 << 31
)

func newPromiseFiles() *promiseFiles { return &promiseFiles{numbers: map[*stepRun]uint32{}} }

func (s *promiseFiles) number(step *stepRun) uint32 {
	n, ok := s.numbers[step]
	if !ok {
		n = uint32(len(s.steps))
		s.numbers[step] = n
		s.steps = append(s.steps, step)
	}
	return n
}

func (s *promiseFiles) putPromise(b notify.Base, one *promise) error {
	return s.putRow(b, s.number(one.step), int64(one.intended), one.scheduledAt, one.count, one.rejected, one.came, one.ledgers)
}

func (s *promiseFiles) putArrival(a *arrival) error {
	return s.putRow(a.base, arrivalFlag|uint32(a.ledger), 0, a.at, a.n, 0, 0, 0)
}

func (s *promiseFiles) putRow(b notify.Base, kind uint32, intended, at int64, count, rejected, came uint32, from uint64) (err error) {
	part := &s.parts[b[15]]
	if part.f == nil {
		if part.f, err = os.CreateTemp("", "notifyd-load-"); err != nil {
			return err
		}
		if err := os.Remove(part.f.Name()); err != nil {
			return err
		}
		part.w = bufio.NewWriterSize(part.f, 16<<10)
	}
	var row [promiseRow]byte
	le := binary.LittleEndian
	copy(row[:], b[:])
	le.PutUint32(row[16:], kind)
	le.PutUint64(row[20:], uint64(intended))
	le.PutUint64(row[28:], uint64(at))
	le.PutUint32(row[36:], count)
	le.PutUint32(row[40:], rejected)
	le.PutUint32(row[44:], came)
	le.PutUint64(row[48:], from)
	part.size += promiseRow
	part.dirty = true
	_, err = part.w.Write(row[:])
	return err
}

// readPart calls the function visit with each row of a part, until the function returns false.
// For a promise, the argument a is nil. For an arrival, the argument one is nil.
func (s *promiseFiles) readPart(part *promisePart, visit func(b notify.Base, one *promise, a *arrival) bool) error {
	if part.f == nil {
		return nil
	}
	if err := part.w.Flush(); err != nil {
		return err
	}
	in := bufio.NewReaderSize(io.NewSectionReader(part.f, 0, part.size), 256<<10)
	var row [promiseRow]byte
	le := binary.LittleEndian
	for {
		if _, err := io.ReadFull(in, row[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		b, kind := notify.Base(row[:16]), le.Uint32(row[16:])
		at, count := int64(le.Uint64(row[28:])), le.Uint32(row[36:])
		more := false
		if kind >= arrivalFlag {
			more = visit(b, nil, &arrival{base: b, at: at, n: count, ledger: uint8(kind)})
		} else {
			d := dueMoment{intended: time.Duration(le.Uint64(row[20:])), scheduledAt: at, step: s.steps[kind]}
			more = visit(b, &promise{dueMoment: d, count: count, rejected: le.Uint32(row[40:]), came: le.Uint32(row[44:]), ledgers: le.Uint64(row[48:])}, nil)
		}
		if !more {
			return nil
		}
	}
}

// eachPromise calls f with every promise, until f returns false.
func (s *promiseFiles) eachPromise(f func(b notify.Base, one *promise) bool) error {
	more := true
	for i := range s.parts {
		err := s.readPart(&s.parts[i], func(b notify.Base, one *promise, _ *arrival) bool {
			more = one == nil || f(b, one)
			return more
		})
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// moveToFiles moves all promises and arrivals from memory to files. The caller holds the lock
// joining.
func (p *promises) moveToFiles() error {
	p.mu.Lock()
	open, early := p.open, p.early
	p.open, p.early, p.promisedEarly, p.earlyCount = nil, nil, nil, 0
	p.mu.Unlock()
	if p.files == nil {
		p.files = newPromiseFiles()
	}
	for b, one := range open {
		if err := p.files.putPromise(b, &one); err != nil {
			return err
		}
	}
	for _, list := range early {
		for i := range list {
			if err := p.files.putArrival(&list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// joinFiles matches the promises and arrivals in the files, part after part. Promises and arrivals
// without a match stay in the files.
func (p *promises) joinFiles(f onArrival) error {
	p.joining.Lock()
	defer p.joining.Unlock()
	if p.files == nil {
		return nil
	}
	if err := p.moveToFiles(); err != nil {
		return err
	}
	for i := range p.files.parts {
		if err := p.joinPart(&p.files.parts[i], f); err != nil {
			return err
		}
	}
	return nil
}

// closeFiles closes the files. They are already deleted, so this frees their space on the disk. No
// promise may be matched afterwards.
func (p *promises) closeFiles() {
	p.joining.Lock()
	defer p.joining.Unlock()
	if p.files == nil {
		return
	}
	for i := range p.files.parts {
		if f := p.files.parts[i].f; f != nil {
			_ = f.Close() // the rows are not needed any more
		}
	}
	p.files = nil
}

func (p *promises) joinPart(part *promisePart, f onArrival) error {
	if !part.dirty {
		return nil
	}
	open := map[notify.Base]promise{}
	var came []arrival
	err := p.files.readPart(part, func(b notify.Base, one *promise, a *arrival) bool {
		if one != nil {
			open[b] = *one
		} else {
			came = append(came, *a)
		}
		return true
	})
	if err != nil {
		return err
	}
	rest := came[:0]
	for i := range came {
		if !p.match(open, &came[i], f) {
			rest = append(rest, came[i])
		}
	}
	if err := part.f.Truncate(0); err != nil {
		return err
	}
	if _, err := part.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	part.size = 0
	for b, one := range open {
		if err := p.files.putPromise(b, &one); err != nil {
			return err
		}
	}
	for i := range rest {
		if err := p.files.putArrival(&rest[i]); err != nil {
			return err
		}
	}
	part.dirty = false
	return nil
}
