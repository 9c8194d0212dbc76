package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Bounds of what comes through the port.
const (
	maxReaders   = 16
	maxRequest   = 64 << 10         // bytes
	maxFetch     = 4 << 20          // bytes of one answer
	maxFetchWait = 5 * time.Second  // for something to fetch
	readerIdle   = 2 * time.Minute  // between two requests
	readerSlow   = 10 * time.Second // for the rest of a request, or for an answer to be read
)

// readable are the requests that change nothing. It is what kcat and rpk ask to list
// topics, to read them, and to show groups and their lag.
var readable = []kmsg.Key{
	kmsg.ApiVersions, kmsg.Metadata, kmsg.DescribeCluster, kmsg.Fetch, kmsg.ListOffsets, kmsg.OffsetForLeaderEpoch,
	kmsg.FindCoordinator, kmsg.OffsetFetch, kmsg.DescribeGroups, kmsg.ListGroups, kmsg.DescribeConfigs,
}

// readerConn is a connection from the port. The broker ends the process at a request
// that it does not know, allocates whatever length a request says, and does what
// anybody asks. It therefore sees no byte of a client: each request is read here,
// refused unless it is readable, bounded, and written anew. A refused one ends the
// connection.
type readerConn struct {
	net.Conn
	release func() // the slot of the connection; once
	once    sync.Once

	in []byte // what was admitted and the broker has not read; of Read alone

	mu    sync.Mutex
	asked []asked // whose answers are awaited, in order
}

type asked struct{ key, version int16 }

func newReaderConn(c net.Conn, release func()) *readerConn {
	return &readerConn{Conn: c, release: release}
}

func (r *readerConn) Close() error {
	r.once.Do(r.release)
	return r.Conn.Close()
}

// Read returns requests that were admitted, and nothing of any other.
func (r *readerConn) Read(p []byte) (int, error) {
	if len(r.in) == 0 {
		frame, err := r.request()
		if err != nil {
			return 0, err
		}
		r.in = frame
	}
	n := copy(p, r.in)
	r.in = r.in[n:]
	return n, nil
}

// request reads one request and returns it as the broker may see it.
func (r *readerConn) request() ([]byte, error) {
	var size [4]byte
	if err := r.SetReadDeadline(time.Now().Add(readerIdle)); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(r.Conn, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxRequest {
		return nil, fmt.Errorf("kfake: a request of %d bytes: the port takes at most %d", n, maxRequest)
	}
	if err := r.SetReadDeadline(time.Now().Add(readerSlow)); err != nil {
		return nil, err
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r.Conn, body); err != nil {
		return nil, err
	}
	frame, a, err := admit(body)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, a) // at most two: the broker reads one ahead
	return frame, nil
}

var errRefused = errors.New("kfake: the port is for reading only")

// admit checks a request, without its length, and returns it, with its length, as
// we write it: so there is nothing in it that was not understood.
func admit(body []byte) (frame []byte, a asked, err error) {
	b := kbin.Reader{Src: body}
	a = asked{b.Int16(), b.Int16()}
	corr, client := b.Int32(), b.NullableString()
	if !slices.Contains(readable, kmsg.Key(a.key)) {
		return nil, a, fmt.Errorf("%w: request %d is not known or changes something", errRefused, a.key)
	}
	req := kmsg.RequestForKey(a.key)
	if a.version < 0 || a.version > req.MaxVersion() {
		return nil, a, fmt.Errorf("%w: version %d of request %d is not known", errRefused, a.version, a.key)
	}
	req.SetVersion(a.version)
	if req.IsFlexible() {
		kmsg.SkipTags(&b)
	}
	if !b.Ok() {
		return nil, a, fmt.Errorf("%w: damaged header", errRefused)
	}
	if err := req.ReadFrom(b.Src); err != nil {
		return nil, a, fmt.Errorf("%w: damaged request %d: %w", errRefused, a.key, err)
	}
	switch q := req.(type) {
	case *kmsg.MetadataRequest:
		q.AllowAutoTopicCreation = false
	case *kmsg.FetchRequest:
		bound(q)
	}
	frame = binary.BigEndian.AppendUint16(make([]byte, 4, len(body)+64), uint16(a.key))
	frame = binary.BigEndian.AppendUint16(frame, uint16(a.version))
	frame = binary.BigEndian.AppendUint32(frame, uint32(corr))
	frame = kbin.AppendNullableString(frame, client)
	if req.IsFlexible() {
		frame = append(frame, 0) // no tags
	}
	frame = req.AppendTo(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame, a, nil
}

// bound keeps small what a fetch makes the broker hold: its answer, the time it
// waits, and a session, which would outlive the connection.
func bound(q *kmsg.FetchRequest) {
	q.ReplicaID, q.ReplicaState = -1, kmsg.FetchRequestReplicaState{ID: -1, Epoch: -1}
	q.SessionID, q.SessionEpoch, q.ForgottenTopics = 0, -1, nil
	q.MaxBytes = min(max(q.MaxBytes, 0), maxFetch)
	q.MinBytes = min(max(q.MinBytes, 0), q.MaxBytes)
	q.MaxWaitMillis = min(max(q.MaxWaitMillis, 0), int32(maxFetchWait.Milliseconds()))
	for i := range q.Topics {
		for j := range q.Topics[i].Partitions {
			p := &q.Topics[i].Partitions[j]
			p.PartitionMaxBytes = min(max(p.PartitionMaxBytes, 0), maxFetch)
		}
	}
}

// Write passes an answer on, which the broker writes in one call. It removes the
// versions of requests that do not read, because clients ask only for versions that
// are offered. Produce
// stays in the list, and is refused: librdkafka, and so kcat, fetches nothing from a
// broker that does not offer it.
func (r *readerConn) Write(p []byte) (int, error) {
	r.mu.Lock()
	var a asked
	if len(r.asked) > 0 {
		a, r.asked = r.asked[0], r.asked[1:]
	}
	r.mu.Unlock()
	out := p
	if a.key == kmsg.ApiVersions.Int16() && len(p) > 8 {
		v := kmsg.NewPtrApiVersionsResponse()
		v.SetVersion(a.version)
		if err := v.ReadFrom(p[8:]); err != nil {
			return 0, fmt.Errorf("kfake: the broker's versions: %w", err)
		}
		v.ApiKeys = slices.DeleteFunc(v.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool {
			return kmsg.Key(k.ApiKey) != kmsg.Produce && !slices.Contains(readable, kmsg.Key(k.ApiKey))
		})
		out = v.AppendTo(append(make([]byte, 4, len(p)), p[4:8]...))
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	}
	if err := r.SetWriteDeadline(time.Now().Add(readerSlow)); err != nil {
		return 0, err
	}
	if _, err := r.Conn.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}
