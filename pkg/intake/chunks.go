package intake

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// splitter distributes the receivers of one fan-out over packed columns: one column for each
// partition, and one chunk for each partition and block. A block is a range of consecutive receiver
// indexes. The next request reuses the buffers of the splitter.
type splitter struct {
	channel        notify.Channel
	userPrefix     string // prefix that user ids must have; empty: any user id
	block          uint32 // receivers per block, a power of two
	index          uint32 // index of the next receiver; refused receivers count too
	nextBlockIndex uint32 // index at which the next block begins
	blockNumber    uint32 // block number of the current block

	partition notify.Partitioner
	cols      []column
	chunks    []columnPiece
	users     userSieve
	needs     textVariables

	accepted    int
	rejected    []rejection
	rejects     map[string]int // number of refused receivers, by error code
	maxRejected int

	values []byte       // encoded envelopes
	recs   []log.Record // records whose values are slices of values
}

// column collects the receivers of one partition. Each chunk is a piece of a column.
type column struct {
	buf   []byte
	start int    // where the current chunk starts in buf
	next  uint32 // lowest index that the next receiver can have
	count uint32
}

// columnPiece is the finished part of a column that becomes one chunk.
type columnPiece struct {
	partition  uint16
	block      uint32
	start, end int
	count      uint32
}

type rejection struct {
	index  uint32
	reason reason
}

func newSplitter() *splitter {
	return &splitter{rejects: map[string]int{}, users: newSeen()}
}

// reset prepares the splitter for a request with about the given number of users. It is called
// again for the same request if the request needs another block size.
func (f *splitter) reset(ch notify.Channel, partitions uint16, block uint32, maxRejected, users int) {
	f.channel, f.block, f.nextBlockIndex = ch, block, block
	f.index, f.blockNumber, f.accepted = 0, 0, 0
	if cap(f.cols) < int(partitions) {
		f.cols = append(f.cols[:cap(f.cols)], make([]column, int(partitions)-cap(f.cols))...)
	}
	f.cols, f.partition = f.cols[:partitions], notify.NewPartitioner(int(partitions))
	for i := range f.cols {
		f.cols[i] = column{buf: f.cols[i].buf[:0]}
	}
	f.chunks, f.rejected, f.maxRejected = f.chunks[:0], f.rejected[:0], maxRejected
	clear(f.rejects)
	f.users.reset(users)
}

// addPlain adds the receiver b[i:j], a user id of printable ASCII without address or variables. It
// hashes and copies ids of up to 16 bytes as two 64-bit words.
func (f *splitter) addPlain(b []byte, i, j int) {
	n := j - i
	// The shortest ids go through the full check, because "", ".", ".." and "/" are not user ids.
	if n < 3 || n > 16 || i+16 > len(b) || f.userPrefix != "" || f.needs.bareReason.given() {
		f.addReceiver(b[i:j:j], nil, nil)
		return
	}
	if f.index == f.nextBlockIndex {
		f.closeBlock()
	}
	w := b[i : i+16]
	lo, hi := binary.LittleEndian.Uint64(w[:8]), binary.LittleEndian.Uint64(w[8:])
	full := hi
	if n < 8 {
		lo &= 1<<(8*n) - 1
		hi = 0
	} else {
		hi &= 1<<(8*(n-8)) - 1
	}
	user := w[:n]
	part := uint16(f.partition.Partition(user))
	if !f.users.isFirst(f.users.mix(lo, hi, n), user, part, f.cols) {
		f.reject(reasonSecondTime)
		return
	}
	c := &f.cols[part]
	delta, at := f.index-c.next, len(c.buf)
	if delta >= 0x80 || cap(c.buf)-at < 18 {
		c.buf = binary.AppendUvarint(c.buf, uint64(delta))
		c.buf = append(c.buf, byte(n<<2))
		c.buf = append(c.buf, user...)
	} else {
		to := c.buf[at : at+18]
		to[0], to[1] = byte(delta), byte(n<<2)
		binary.LittleEndian.PutUint64(to[2:], binary.LittleEndian.Uint64(w))
		binary.LittleEndian.PutUint64(to[10:], full) // the next receiver overwrites the bytes after the first n
		at += 2
		c.buf = c.buf[:at+n]
	}
	f.index++
	c.next = f.index
	c.count++
	f.accepted++
}

// addReceiver checks any receiver. It adds the receiver or records why it is refused.
func (f *splitter) addReceiver(user, address, vars []byte) {
	if f.index == f.nextBlockIndex {
		f.closeBlock()
	}
	why := checkReceiver(f.channel, f.userPrefix, user, address, vars)
	if !why.given() {
		why = f.needs.check(vars)
	}
	if why.given() {
		f.reject(why)
		return
	}
	part := uint16(f.partition.Partition(user))
	if !f.users.isFirst(f.users.hash(user), user, part, f.cols) {
		f.reject(reasonSecondTime)
		return
	}
	c := &f.cols[part]
	flags := uint64(len(user)) << 2
	if len(address) > 0 {
		flags |= 1
	}
	if len(vars) > 0 {
		flags |= 2
	}
	b := binary.AppendUvarint(c.buf, uint64(f.index-c.next))
	b = binary.AppendUvarint(b, flags)
	b = append(b, user...)
	if flags&1 != 0 {
		b = binary.AppendUvarint(b, uint64(len(address)))
		b = append(b, address...)
	}
	if flags&2 != 0 {
		b = binary.AppendUvarint(b, uint64(len(vars)))
		b = append(b, vars...)
	}
	c.buf = b
	f.index++
	c.next = f.index
	c.count++
	f.accepted++
}

func (f *splitter) reject(why reason) {
	if len(f.rejected) < f.maxRejected {
		f.rejected = append(f.rejected, rejection{f.index, why})
	}
	f.rejects[why.code]++
	f.index++
}

// closeBlock ends the chunks of the current block and begins the next block.
func (f *splitter) closeBlock() {
	for p := range f.cols {
		c := &f.cols[p]
		if c.count > 0 {
			f.chunks = append(f.chunks, columnPiece{uint16(p), f.blockNumber, c.start, len(c.buf), c.count})
		}
		c.start, c.next, c.count = len(c.buf), 0, 0
	}
	f.blockNumber++
	f.nextBlockIndex += f.block
}

// largestChunk returns the size in bytes of the largest chunk's receivers. It must be called after
// the last receiver was added.
func (f *splitter) largestChunk() (n int) {
	f.closeBlock()
	for _, c := range f.chunks {
		n = max(n, c.end-c.start)
	}
	return n
}

// fittingBlock returns the largest block size that is smaller than the current size and with
// which no chunk is larger than room bytes. If no size fits, it returns 1. It must be called
// after largestChunk. It computes the chunks of all block sizes in one pass over the receivers.
// With one pass for each size, a body that a client had made slow on purpose took ten times as
// long.
func (f *splitter) fittingBlock(room int) uint32 {
	type level struct {
		shift uint
		at    uint32 // number of the block
		size  int    // size of the chunk so far
	}
	var levels []level // the largest block first
	for shift := bits.Len32(f.block) - 2; shift > 0; shift-- {
		levels = append(levels, level{shift: uint(shift)})
	}
	for _, c := range f.chunks {
		for i := range levels { // each smaller block lies within one block of f, so its first chunk begins here
			levels[i].size = 0
		}
		column := f.cols[c.partition].buf[c.start:c.end]
		left, next := len(column), uint32(0)
		rd := notify.ReadReceivers(column)
		for r := (notify.Receiver{}); rd.Next(&r); next = r.Index + 1 {
			n := left - len(rd.Rest())
			left -= n
			first := n - uvarintLen(r.Index-next) + uvarintLen(r.Index) // a chunk begins with a full index
			over := 0                                                   // number of levels that do not fit
			for i := range levels {
				l := &levels[i]
				if at := r.Index >> l.shift; at == l.at {
					l.size += n
				} else {
					l.at, l.size = at, first
				}
				if l.size > room {
					over = i + 1 // this level and all larger levels do not fit
				}
			}
			levels = levels[over:]
		}
	}
	if len(levels) == 0 {
		return 1
	}
	return 1 << levels[0].shift
}

func uvarintLen(n uint32) int { return (bits.Len32(n|1) + 6) / 7 }

// makeRecords makes one record per chunk. The envelope e contains the fields that all records
// share; makeRecords overwrites its other fields. The records are valid until the splitter begins
// its next request.
func (f *splitter) makeRecords(e *notify.Envelope, topic string) []log.Record {
	e.Total = uint32(f.accepted)
	size, overhead := 0, len(notify.AppendEnvelope(nil, e))+64
	for _, c := range f.chunks {
		size += c.end - c.start + overhead
	}
	if cap(f.values) < size {
		f.values = make([]byte, 0, size)
	}
	b, recs := f.values[:0], f.recs[:0]
	for _, c := range f.chunks {
		at := len(b)
		e.Chunk.Partition, e.Chunk.Block = c.partition, c.block
		e.Count, e.Receivers = c.count, f.cols[c.partition].buf[c.start:c.end]
		b = notify.AppendEnvelope(b, e)
		recs = append(recs, log.Record{Topic: topic, Partition: int32(c.partition), Value: b[at:len(b):len(b)]})
	}
	f.values, f.recs = b, recs
	return recs
}

// atReceiver puts the current receiver, for example receivers[7], before the field name of an
// error.
func (f *splitter) atReceiver(err error) error {
	return prefixField(fmt.Sprintf("receivers[%d]", f.index), err)
}

// firstBlock returns the block size with which a fan-out starts, in receivers: perPartition times
// the number of partitions, rounded up to a power of two.
func firstBlock(partitions, perPartition int) uint32 {
	n := uint(max(partitions, 1) * perPartition)
	return 1 << bits.Len(n-1)
}
