package history

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"sort"
	"sync/atomic"

	"github.com/notifyd/notifyd/pkg/notify"
)

// segment is a sealed file. In memory it takes 0.5 KB: only the position of its index is in memory,
// not the index itself.
type segment struct {
	blob     *blob
	size     int64
	meta     *segmentMeta
	minBase  notify.Base
	maxBase  notify.Base
	users    sortedIndex
	bases    sortedIndex
	replaced bool        // a merged segment contains this segment, so load removes the file
	bad      atomic.Bool // damage was found in the segment, so it is not merged
}

func openSegment(fs FS, dir, name string) (*segment, error) {
	f, err := fs.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	m, err := readMeta(f)
	if err == nil {
		if num, ok := segmentNumber(name); !ok || num != m.Num {
			err = fmt.Errorf("%w: the meta belongs to segment %d, but the file is named %s", errDamaged, m.Num, name)
		}
	}
	var size int64
	if err == nil {
		size, err = f.Size()
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	seg, err := newSegment(newBlob(f, name), m, size)
	if err != nil {
		f.Close()
		return nil, err
	}
	return seg, nil
}

// newSegment makes a segment of the file b. It adds no reference to b.
func newSegment(b *blob, m *segmentMeta, size int64) (*segment, error) {
	s := &segment{
		blob: b, size: size, meta: m,
		users: sortedIndex{m.Users.Off, m.Receivers, m.UserBits},
		bases: sortedIndex{m.Bases.Off, m.Chunks, m.BaseBits},
	}
	var err1, err2 error
	s.minBase, err1 = notify.ParseBase(m.MinBase)
	s.maxBase, err2 = notify.ParseBase(m.MaxBase)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("%w: the lowest base %q or the highest base %q is not valid", errDamaged, m.MinBase, m.MaxBase)
	}
	return s, nil
}

// has reports whether base lies between the lowest and highest base of the segment.
func (s *segment) has(base notify.Base) bool {
	return bytes.Compare(base[:], s.minBase[:]) >= 0 && bytes.Compare(base[:], s.maxBase[:]) <= 0
}

// row reads the row of a chunk from the chunk table.
func (s *segment) row(chunk uint32, r *row) error {
	if int64(chunk) >= int64(s.meta.Chunks) {
		return fmt.Errorf("%w: the index points to chunk %d, but the segment has %d chunks", errDamaged, chunk, s.meta.Chunks)
	}
	var b [rowSize]byte
	if err := readFull(s.blob, b[:], s.meta.Rows.Off+int64(chunk)*rowSize); err != nil {
		return err
	}
	decodeRow(b[:], r)
	return s.checkRow(r)
}

// checkRow returns errDamaged if a row points outside of the segment.
func (s *segment) checkRow(r *row) error {
	if r.off < int64(len(fileHeader)) || r.size < recordHeader || r.off > s.meta.Bodies-int64(r.size) || int64(r.start) >= int64(s.meta.Receivers) {
		return fmt.Errorf("%w: the row with the first ordinal %d points to %d bytes at offset %d, which are not in this segment", errDamaged, r.start, r.size, r.off)
	}
	return nil
}

// rowOf reads the row of the chunk that contains an ordinal. It makes two reads, however many
// chunks there are. The parameter buf is scratch memory; rowOf returns it, possibly grown.
func (s *segment) rowOf(ordinal uint32, buf []byte, r *row) ([]byte, error) {
	if int64(ordinal) >= int64(s.meta.Receivers) {
		return buf, fmt.Errorf("%w: the index points to ordinal %d, but the segment has %d receivers", errDamaged, ordinal, s.meta.Receivers)
	}
	stride := int64(ordinal / strideLen)
	var b [8]byte
	n := min(8, s.meta.Strides.Len-4*stride)
	if err := readFull(s.blob, b[:n], s.meta.Strides.Off+4*stride); err != nil {
		return buf, err
	}
	lo, hi := binary.LittleEndian.Uint32(b[:]), uint32(s.meta.Chunks-1)
	if n == 8 {
		hi = binary.LittleEndian.Uint32(b[4:])
	}
	if lo > hi || int64(hi) >= int64(s.meta.Chunks) || hi-lo > strideLen {
		return buf, fmt.Errorf("%w: stride %d has the impossible range of chunks %d to %d", errDamaged, stride, lo, hi)
	}
	size := int(hi-lo+1) * rowSize
	if cap(buf) < size {
		buf = make([]byte, size)
	}
	buf = buf[:size]
	if err := readFull(s.blob, buf, s.meta.Rows.Off+int64(lo)*rowSize); err != nil {
		return buf, err
	}
	i := sort.Search(int(hi-lo+1), func(i int) bool { return binary.LittleEndian.Uint32(buf[i*rowSize+28:]) > ordinal })
	if i == 0 {
		return buf, fmt.Errorf("%w: no chunk of the stride contains ordinal %d", errDamaged, ordinal)
	}
	decodeRow(buf[(i-1)*rowSize:], r)
	return buf, s.checkRow(r)
}

// body reads the body record of a row.
func (s *segment) body(r *row) ([]byte, error) {
	b := make([]byte, r.size)
	return b, readFull(s.blob, b, r.off)
}

// verify reads the index sections and compares their checksums with the meta.
func (s *segment) verify(buf []byte) error {
	for _, sec := range []section{s.meta.Rows, s.meta.Strides, s.meta.Users, s.meta.Bases} {
		crc := uint32(0)
		for at := int64(0); at < sec.Len; {
			b := buf[:min(int64(len(buf)), sec.Len-at)]
			if err := readFull(s.blob, b, sec.Off+at); err != nil {
				return err
			}
			crc = crc32.Update(crc, castagnoli, b)
			at += int64(len(b))
		}
		if crc != sec.CRC {
			return fmt.Errorf("%w: the checksum of the index section at offset %d does not match its content", errDamaged, sec.Off)
		}
	}
	return nil
}

// segmentView is an immutable list of segments, ordered by their youngest base, youngest first. It
// has a reference to each file. So a segment that is removed during a query stays readable.
type segmentView struct {
	segs []*segment
	refs atomic.Int64
}

// release releases a reference to the view. After the last reference, it releases the view's files.
func (v *segmentView) release() {
	if v.refs.Add(-1) == 0 {
		for _, s := range v.segs {
			s.blob.release()
		}
	}
}

// acquireView returns the current view. The caller must release it.
func (s *Store) acquireView() *segmentView {
	s.viewMu.RLock()
	defer s.viewMu.RUnlock()
	s.view.refs.Add(1)
	return s.view
}

// replaceView replaces the current view. The new view has the segments of the current view and
// those in "added", but not those in "removed". The caller keeps its references to these
// segments.
func (s *Store) replaceView(added, removed []*segment) {
	gone := map[*segment]bool{}
	for _, d := range removed {
		gone[d] = true
	}
	v := &segmentView{}
	v.refs.Store(1)
	s.viewMu.Lock()
	old := s.view
	for _, seg := range append(old.segs[:len(old.segs):len(old.segs)], added...) {
		if !gone[seg] {
			seg.blob.hold()
			v.segs = append(v.segs, seg)
		}
	}
	sort.SliceStable(v.segs, func(i, j int) bool {
		return bytes.Compare(v.segs[i].maxBase[:], v.segs[j].maxBase[:]) > 0
	})
	s.view = v
	s.viewMu.Unlock()
	old.release()
}
