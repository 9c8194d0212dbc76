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

// The limits of connections through the port.
const (
	maxReaders   = 16
	maxRequest   = 64 << 10         // bytes of one request
	maxFetch     = 4 << 20          // bytes of one response
	maxFetchWait = 5 * time.Second  // longest wait of a fetch for records
	readerIdle   = 2 * time.Minute  // longest time between two requests
	readerSlow   = 10 * time.Second // longest time for the rest of a request, or for the client to read a response
)

// readable lists the requests that change nothing. kcat and rpk use these requests to list topics, to
// read topics, and to show groups and their lag.
var readable = []kmsg.Key{
	kmsg.ApiVersions, kmsg.Metadata, kmsg.DescribeCluster, kmsg.Fetch, kmsg.ListOffsets, kmsg.OffsetForLeaderEpoch,
	kmsg.FindCoordinator, kmsg.OffsetFetch, kmsg.DescribeGroups, kmsg.ListGroups, kmsg.DescribeConfigs,
}

// readerConn is a connection through the port. The broker must not get the bytes of such a client:
// it would end the process at an unknown request, allocate any length that a request states, and
// execute any request. So readerConn parses each request and refuses requests that the list
// readable does not contain. It limits what an accepted request may ask for (limitFetch), and
// encodes the request again for the broker. After a refused request the connection ends.
type readerConn struct {
	net.Conn
	release func() // gives back the connection's slot
	once    sync.Once

	in []byte // encoded requests that the broker has not read yet; only Read uses it

	mu      sync.Mutex
	pending []pendingRequest // requests without a response yet, in order
}

type pendingRequest struct{ key, version int16 }

func newReaderConn(c net.Conn, release func()) *readerConn {
	return &readerConn{Conn: c, release: release}
}

func (r *readerConn) Close() error {
	r.once.Do(r.release)
	return r.Conn.Close()
}

// Read gives the broker the requests of the client. It gives only requests that the function admit
// has accepted and encoded again.
func (r *readerConn) Read(p []byte) (int, error) {
	if len(r.in) == 0 {
		frame, err := r.readRequest()
		if err != nil {
			return 0, err
		}
		r.in = frame
	}
	n := copy(p, r.in)
	r.in = r.in[n:]
	return n, nil
}

// readRequest reads one request and returns it encoded again for the broker.
func (r *readerConn) readRequest() ([]byte, error) {
	var size [4]byte
	if err := r.SetReadDeadline(time.Now().Add(readerIdle)); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(r.Conn, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxRequest {
		return nil, fmt.Errorf("embedded log: a request has %d bytes; through the port a request may have at most %d bytes", n, maxRequest)
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
	r.pending = append(r.pending, a) // at most two: while the broker works on a request, it reads the next request
	return frame, nil
}

var errRefused = errors.New("embedded log: the port is for reading only")

// admit parses and checks a request, which it gets without the length before it. It returns the
// request encoded again, with its length, so that the broker gets only bytes that this package has
// parsed.
func admit(body []byte) (frame []byte, a pendingRequest, err error) {
	b := kbin.Reader{Src: body}
	a = pendingRequest{b.Int16(), b.Int16()}
	corr, client := b.Int32(), b.NullableString()
	if !slices.Contains(readable, kmsg.Key(a.key)) {
		return nil, a, fmt.Errorf("%w: the request with API key %d is unknown or changes data", errRefused, a.key)
	}
	req := kmsg.RequestForKey(a.key)
	if a.version < 0 || a.version > req.MaxVersion() {
		return nil, a, fmt.Errorf("%w: version %d of the request with API key %d is unknown", errRefused, a.version, a.key)
	}
	req.SetVersion(a.version)
	if req.IsFlexible() {
		kmsg.SkipTags(&b)
	}
	if !b.Ok() {
		return nil, a, fmt.Errorf("%w: the header of a request is damaged", errRefused)
	}
	if err := req.ReadFrom(b.Src); err != nil {
		return nil, a, fmt.Errorf("%w: a request with API key %d is damaged: %w", errRefused, a.key, err)
	}
	switch q := req.(type) {
	case *kmsg.MetadataRequest:
		q.AllowAutoTopicCreation = false
	case *kmsg.FetchRequest:
		limitFetch(q)
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

// limitFetch limits the size of the response and the wait of a fetch. It also removes the fetch's
// session, because the broker would keep the session after the connection has ended.
func limitFetch(q *kmsg.FetchRequest) {
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

// Write sends a response to the client. The broker writes each response in one call. Clients send
// only requests that the ApiVersions response offers, so Write removes from that response the
// requests that readerConn would refuse. Only Produce stays there, although readerConn refuses it,
// too: librdkafka, which kcat uses, does not fetch from a broker that does not offer Produce.
func (r *readerConn) Write(p []byte) (int, error) {
	r.mu.Lock()
	var a pendingRequest
	if len(r.pending) > 0 {
		a, r.pending = r.pending[0], r.pending[1:]
	}
	r.mu.Unlock()
	out := p
	if a.key == kmsg.ApiVersions.Int16() && len(p) > 8 {
		v := kmsg.NewPtrApiVersionsResponse()
		v.SetVersion(a.version)
		if err := v.ReadFrom(p[8:]); err != nil {
			return 0, fmt.Errorf("embedded log: decoding the ApiVersions response of the broker: %w", err)
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
