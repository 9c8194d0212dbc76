package embedded

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// framed is a request as a client sends it.
func framed(req kmsg.Request, version int16) []byte {
	req.SetVersion(version)
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("test")).AppendRequest(nil, req, 7)
}

// unknownKey is 14 bytes of a request with an unknown key. The broker ended the process
// when it read them.
var unknownKey = []byte("\x00\x00\x00\x0a\x7f\xff\x00\x00\x00\x00\x00\x00\xff\xff")

// changes are requests that a reader must not make, by what they would do.
func changes() map[string][]byte {
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.TopicNames = []string{"topic"}
	made := kmsg.NewCreateTopicsRequestTopic()
	made.Topic, made.NumPartitions, made.ReplicationFactor = "other", 1, 1
	create := kmsg.NewPtrCreateTopicsRequest()
	create.Topics = append(create.Topics, made)
	out := map[string][]byte{
		"delete topics": framed(del, 4), "create topics": framed(create, 4),
		"unknown": unknownKey, "1 GiB": {0x40, 0, 0, 0, 0, 1, 0, 4}, "negative length": {0xff, 0xff, 0xff, 0xff},
		"unknown version": framed(kmsg.NewPtrMetadataRequest(), 99), "short": {0, 0, 0, 2, 0, 3}, "empty": {0, 0, 0, 0},
		"damaged": append([]byte{0, 0, 0, 14, 0, 3, 0, 4, 0, 0, 0, 1, 0xff, 0xff}, 0x7f, 0xff, 0xff, 0xff),
	}
	for k := range int16(100) {
		if req := kmsg.RequestForKey(k); req != nil && !slices.Contains(readable, kmsg.Key(k)) {
			out[kmsg.NameForKey(k)] = framed(req, 0)
			out[kmsg.NameForKey(k)+", newest"] = framed(req, req.MaxVersion())
		}
	}
	return out
}

// Whoever reaches the port can neither end the process, nor change anything, nor make
// it hold memory: the connection is closed before the broker sees a byte.
func TestPortIsForReading(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir(), Topics: map[string]int{"topic": 1}})
	b.fill(t, "topic", 0, 0, 3, 10)
	for name, req := range changes() {
		c, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(readerSlow / 2))
		if _, err := c.Write(req); err != nil {
			t.Fatal(name, err)
		}
		got, err := io.ReadAll(c)
		if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() || len(got) > 0 {
			t.Errorf("%s: answered %x, %v; want the connection closed", name, got, err)
		}
		_ = c.Close()
	}
	if got := b.read(t, "topic", 0); len(got) != 3 || b.Partitions("other") != 0 {
		t.Errorf("the log holds %v, and %d partitions of another topic", got, b.Partitions("other"))
	}
}

// A client library reads through the port, and its writes fail.
func TestPortReads(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir(), Topics: map[string]int{"topic": 1}})
	b.fill(t, "topic", 0, 0, 30, 10)
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.RecordDeliveryTimeout(2*time.Second), kgo.DefaultProduceTopic("topic"),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"topic": {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for n := 0; n < 30; {
		fs := cl.PollFetches(t.Context())
		if err := fs.Err(); err != nil {
			t.Fatal(err)
		}
		n += fs.NumRecords()
	}
	if topics, err := kadm.NewClient(cl).ListTopics(t.Context()); err != nil || !topics.Has("topic") {
		t.Errorf("topics %v, %v", topics, err)
	}
	if groups, err := kadm.NewClient(cl).ListGroups(t.Context()); err != nil {
		t.Errorf("groups %v, %v", groups, err)
	}
	if err := cl.ProduceSync(t.Context(), record("topic", "x")).FirstErr(); err == nil {
		t.Error("a record was written through the port")
	}
	if got := b.read(t, "topic", 0); len(got) != 30 {
		t.Errorf("the log holds %d records, want 30", len(got))
	}
}

// One reader cannot keep more than its bounds, nor more readers than there may be.
func TestPortIsBounded(t *testing.T) {
	t.Parallel()
	q := kmsg.NewPtrFetchRequest()
	q.Version, q.MaxBytes, q.MinBytes, q.MaxWaitMillis, q.SessionID, q.SessionEpoch, q.ReplicaID = 12, 1<<31-1, 1<<31-1, 1<<31-1, 5, 6, 1
	topic, part := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	topic.Topic, part.PartitionMaxBytes = "topic", 1<<31-1
	topic.Partitions = append(topic.Partitions, part)
	q.Topics = append(q.Topics, topic)
	frame, _, err := admit(framed(q, 12)[4:])
	if err != nil {
		t.Fatal(err)
	}
	got := kmsg.NewPtrFetchRequest()
	got.SetVersion(12)
	if err := got.ReadFrom(frame[4+2+2+4+2+len("test")+1:]); err != nil {
		t.Fatal(err)
	}
	if got.MaxBytes != maxFetch || got.MinBytes > maxFetch || got.Topics[0].Partitions[0].PartitionMaxBytes != maxFetch ||
		got.MaxWaitMillis != 5000 || got.SessionID != 0 || got.SessionEpoch != -1 || got.ReplicaID != -1 {
		t.Errorf("the broker sees %+v", got)
	}
	m := kmsg.NewPtrMetadataRequest()
	m.AllowAutoTopicCreation = true
	with := framed(m, 4)
	if frame, _, err = admit(with[4:]); err != nil || bytes.Equal(frame, with) {
		t.Errorf("asks for topics to be made: %x, %v", frame, err)
	}

	b := open(t, Config{Topics: map[string]int{"topic": 1}})
	var conns []net.Conn
	for range maxReaders + 1 {
		c, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		conns = append(conns, c)
		_ = c.SetDeadline(time.Now().Add(readerIdle / 2))
		if len(conns) <= maxReaders { // it is served
			if _, err := c.Write(framed(kmsg.NewPtrApiVersionsRequest(), 0)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
				t.Fatal(len(conns), err)
			}
		}
	}
	if _, err := conns[maxReaders].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one reader too many: %v", err)
	}
}

// The log can be without a port; the process and the user's tools reach it still.
func TestNoPort(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	b := open(t, Config{Dir: filepath.Join(dir, "log"), NoPort: true, Socket: socket, Topics: map[string]int{"topic": 1}})
	if b.HasPort() {
		t.Error("there is a port")
	}
	b.fill(t, "topic", 0, 0, 3, 10)
	st, err := os.Stat(socket)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("the socket is %v, %v; want mode 0600", st.Mode(), err)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:9092"), kgo.Dialer(DialSocket(socket)))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(t.Context(), record("topic", "3 by the socket")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if got := b.read(t, "topic", 0); len(got) != 4 {
		t.Errorf("the log holds %v", got)
	}
	cl.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// FuzzPort sends bytes to the port. Whatever they are, the process lives on, the log
// is as it was, and the next reader is served.
func FuzzPort(f *testing.F) {
	for _, req := range changes() {
		f.Add(req)
	}
	for _, k := range readable {
		req := kmsg.RequestForKey(k.Int16())
		f.Add(framed(req, 0))
		f.Add(framed(req, req.MaxVersion()))
	}
	b, err := Open(Config{Topics: map[string]int{"topic": 1}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { b.Close() })
	f.Fuzz(func(t *testing.T, in []byte) {
		const most = 1 << 10
		if len(in) > most {
			in = in[:most]
		}
		ours, theirs, err := connPair(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer ours.Close()
		select {
		case b.door.conns <- newReaderConn(theirs, func() {}):
		case <-time.After(time.Minute):
			t.Fatal("the broker takes no connection")
		}
		_ = ours.SetDeadline(time.Now().Add(time.Minute))
		_, _ = ours.Write(in)
		_ = ours.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, ours); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%x: the connection is held", in)
		}
		for topic, parts := range map[string]int{"topic": 1, "other": 0} {
			if infos := b.cluster.PartitionInfos(topic); len(infos) != parts || parts > 0 && infos[0].HighWatermark != 0 {
				t.Fatalf("%x changed the log: %+v", in, infos)
			}
		}
	})
}
