package history

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/notifyd/notifyd/pkg/notify"
)

// errDamaged means that the content of a file differs from what this package writes.
var errDamaged = errors.New("damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	fileHeader   = "NTFYHST1"
	footerMagic  = "NTFYEND1"
	footerSize   = 8 + 4 + 4 + 8 // meta offset, meta length, checksum, magic
	recordHeader = 4 + 4 + 2 + 8
	rowSize      = 40
	strideLen    = 64 // ordinals per stride
	maxMeta      = 16 << 20
)

// row is one chunk in the chunk table.
type row struct {
	base        notify.Base
	off         int64 // offset of the body record in the file
	size        uint32
	start       uint32 // ordinal of the chunk's first receiver
	first, last uint32 // lowest and highest request index in the chunk
}

func appendRow(b []byte, r *row) []byte {
	b = append(b, r.base[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.off))
	b = binary.LittleEndian.AppendUint32(b, r.size)
	b = binary.LittleEndian.AppendUint32(b, r.start)
	b = binary.LittleEndian.AppendUint32(b, r.first)
	return binary.LittleEndian.AppendUint32(b, r.last)
}

func decodeRow(b []byte, r *row) {
	_ = b[rowSize-1]
	copy(r.base[:], b)
	r.off = int64(binary.LittleEndian.Uint64(b[16:]))
	r.size = binary.LittleEndian.Uint32(b[24:])
	r.start = binary.LittleEndian.Uint32(b[28:])
	r.first = binary.LittleEndian.Uint32(b[32:])
	r.last = binary.LittleEndian.Uint32(b[36:])
}

// bodyRecord is one body record: the place of the chunk in the log, and its envelope.
type bodyRecord struct {
	part   uint16 // index into segmentMeta.Parts
	offset int64
	value  []byte
}

// appendBodyRecord appends a body record. The checksum covers all bytes that follow the
// checksum.
func appendBodyRecord(b []byte, s *bodyRecord) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s.value)))
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint16(b, s.part)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.offset))
	b = append(b, s.value...)
	binary.LittleEndian.PutUint32(b[start+4:], crc32.Checksum(b[start+8:], castagnoli))
	return b
}

// decodeBodyRecord reads a body record. The field value of the record shares memory with b.
func decodeBodyRecord(b []byte, s *bodyRecord) error {
	if len(b) < recordHeader || int(binary.LittleEndian.Uint32(b)) != len(b)-recordHeader {
		return fmt.Errorf("%w: the length in the header of a body record does not match the %d bytes of the record", errDamaged, len(b))
	}
	if crc32.Checksum(b[8:], castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return fmt.Errorf("%w: the checksum of a body record does not match its content", errDamaged)
	}
	s.part = binary.LittleEndian.Uint16(b[8:])
	s.offset = int64(binary.LittleEndian.Uint64(b[10:]))
	s.value = b[recordHeader:]
	return nil
}

// section is the position of one index section in the file.
type section struct {
	Off int64  `json:"off"`
	Len int64  `json:"len"`
	CRC uint32 `json:"crc"`
}

// partRange is the range of offsets [From, To) of one log partition that a segment contains.
type partRange struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
}

// segmentMeta describes a segment. It is JSON, so that an operator can read it with tail -c.
type segmentMeta struct {
	Num       uint64      `json:"num"`
	Chunks    int         `json:"chunks"`
	Receivers int         `json:"receivers"`
	Bodies    int64       `json:"bodies"` // offset at which the bodies end
	Rows      section     `json:"rows"`
	Strides   section     `json:"strides"`
	Users     section     `json:"users"`
	Bases     section     `json:"bases"`
	UserBits  int         `json:"user_bits"`
	BaseBits  int         `json:"base_bits"`
	MinBase   string      `json:"min_base"`
	MaxBase   string      `json:"max_base"`
	MinTime   int64       `json:"min_time"` // time of the oldest record, ms since 1970
	MaxTime   int64       `json:"max_time"`
	Parts     []partRange `json:"parts"`
	Replaces  []uint64    `json:"replaces,omitempty"` // numbers of the segments that were merged into this segment
}

// check returns an error if m cannot describe a file whose meta begins at metaOffset.
func (m *segmentMeta) check(metaOffset int64) error {
	if m.Chunks < 1 || m.Receivers < m.Chunks || m.Receivers > maxOrdinals || len(m.Parts) < 1 {
		return fmt.Errorf("%w: the meta has impossible counts: %d chunks, %d receivers, %d partitions", errDamaged, m.Chunks, m.Receivers, len(m.Parts))
	}
	if m.UserBits < 0 || m.UserBits > maxDirBits || m.BaseBits < 0 || m.BaseBits > maxDirBits {
		return fmt.Errorf("%w: the meta has impossible directory sizes: %d bits for users, %d bits for bases", errDamaged, m.UserBits, m.BaseBits)
	}
	if m.Bodies < int64(len(fileHeader)) {
		return fmt.Errorf("%w: the meta says that the bodies end at offset %d, which is inside the header", errDamaged, m.Bodies)
	}
	at := m.Bodies
	for _, s := range []struct {
		section
		want int64
	}{
		{m.Rows, int64(m.Chunks) * rowSize},
		{m.Strides, strideCount(m.Receivers) * 4},
		{m.Users, indexSize(m.Receivers, m.UserBits)},
		{m.Bases, indexSize(m.Chunks, m.BaseBits)},
	} {
		if s.Off != at || s.Len != s.want {
			return fmt.Errorf("%w: the meta has a section of %d bytes at offset %d; it must have %d bytes at offset %d", errDamaged, s.Len, s.Off, s.want, at)
		}
		at += s.Len
	}
	if at != metaOffset {
		return fmt.Errorf("%w: the sections end at offset %d, but the meta begins at offset %d", errDamaged, at, metaOffset)
	}
	return nil
}

// strideCount returns the number of stride entries for n ordinals.
func strideCount(n int) int64 { return int64((n + strideLen - 1) / strideLen) }

// appendFooter appends the meta m and the footer. The parameter off is the offset of the meta in
// the file.
func appendFooter(b []byte, m *segmentMeta, off int64) ([]byte, error) {
	js, err := json.Marshal(m)
	if err != nil {
		return b, err
	}
	b = append(b, js...)
	var f [footerSize]byte
	binary.LittleEndian.PutUint64(f[:], uint64(off))
	binary.LittleEndian.PutUint32(f[8:], uint32(len(js)))
	crc := crc32.Update(crc32.Checksum(js, castagnoli), castagnoli, f[:12])
	binary.LittleEndian.PutUint32(f[12:], crc)
	copy(f[16:], footerMagic)
	return append(b, f[:]...), nil
}

// readMeta reads and checks the header, the footer and the meta of a sealed file. It returns
// errDamaged if one of them is damaged or they do not match each other.
func readMeta(f File) (*segmentMeta, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size < int64(len(fileHeader)+footerSize) {
		return nil, fmt.Errorf("%w: the file has only %d bytes; a segment has at least %d bytes", errDamaged, size, len(fileHeader)+footerSize)
	}
	var head [len(fileHeader)]byte
	if err := readFull(f, head[:], 0); err != nil {
		return nil, err
	}
	var foot [footerSize]byte
	if err := readFull(f, foot[:], size-footerSize); err != nil {
		return nil, err
	}
	if string(head[:]) != fileHeader || string(foot[16:]) != footerMagic {
		return nil, fmt.Errorf("%w: the file is not a sealed segment of this version", errDamaged)
	}
	off, n := int64(binary.LittleEndian.Uint64(foot[:])), int64(binary.LittleEndian.Uint32(foot[8:]))
	if off < 0 || n > maxMeta || off != size-footerSize-n {
		return nil, fmt.Errorf("%w: the footer names a meta of %d bytes at offset %d, which does not match the size of the file", errDamaged, n, off)
	}
	js := make([]byte, n)
	if err := readFull(f, js, off); err != nil {
		return nil, err
	}
	if crc32.Update(crc32.Checksum(js, castagnoli), castagnoli, foot[:12]) != binary.LittleEndian.Uint32(foot[12:]) {
		return nil, fmt.Errorf("%w: the checksum of the meta does not match its content", errDamaged)
	}
	m := new(segmentMeta)
	if err := json.Unmarshal(js, m); err != nil {
		return nil, fmt.Errorf("%w: the meta is not valid JSON: %w", errDamaged, err)
	}
	err = m.check(off)
	return m, err
}
