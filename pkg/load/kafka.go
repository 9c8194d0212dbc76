package load

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/notify"
)

// KafkaTarget writes envelopes directly into the topics, as the API does. So a run can measure the
// log and the workers without the API. KafkaTarget validates nothing. It is safe for concurrent
// use.
type KafkaTarget struct {
	client *kgo.Client
	parts  map[string]int // number of partitions by topic
}

// Socket is the prefix of a broker address that is the name of a unix socket. The embedded log of a
// notifyd of the same user listens on such a socket.
const Socket = "unix:"

// dialLoopback dials brokers on loopback addresses only. A broker tells the client the addresses of
// the other brokers. So even a broker behind a tunnel on loopback may name another machine.
func dialLoopback(ctx context.Context, network, addr string) (net.Conn, error) {
	if !notify.LoopbackHost(addr) {
		return nil, fmt.Errorf("the broker at %s is not on a loopback address: load goes to brokers on loopback addresses only", addr)
	}
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

// NewKafkaTarget connects to brokers and reads their topics. Each broker is HOST:PORT. If there is
// only one broker, it may also be Socket followed by the name of a unix socket. The caller closes
// the target. NewKafkaTarget returns an error of notify.KindUnavailable if no broker answers, and
// of notify.KindInvalid if notifyd's topics are missing.
func NewKafkaTarget(ctx context.Context, brokers []string) (*KafkaTarget, error) {
	seeds := kgo.SeedBrokers(brokers...)
	dial := dialLoopback
	if name, ok := strings.CutPrefix(strings.Join(brokers, ","), Socket); ok {
		seeds = kgo.SeedBrokers("127.0.0.1:9092") // any address: the dialer ignores it
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", name)
		}
	}
	cl, err := kgo.NewClient(
		seeds, kgo.Dialer(dial), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(1<<20), kgo.ProducerLinger(2*time.Millisecond), kgo.MaxBufferedRecords(1<<18),
	)
	if err != nil {
		return nil, err
	}
	t := &KafkaTarget{client: cl, parts: map[string]int{}}
	found, err := kadm.NewClient(cl).ListTopics(ctx)
	if err != nil {
		cl.Close()
		return nil, notify.Unavailable("kafka", time.Second, err)
	}
	for _, l := range notify.Lanes() {
		if d, ok := found[l.Topic()]; ok && d.Err == nil {
			t.parts[l.Topic()] = len(d.Partitions)
		}
	}
	if len(t.parts) == 0 {
		cl.Close()
		return nil, notify.Invalid("no_topics", "kafka", fmt.Sprintf("has none of notifyd's topics, such as %s: start notifyd once, so that it creates them", notify.Lanes()[0].Topic()))
	}
	return t, nil
}

// Close closes the connections.
func (t *KafkaTarget) Close() { t.client.Close() }

// Send implements Target. It writes one envelope per message and waits until the in-sync replicas
// have stored them.
func (t *KafkaTarget) Send(ctx context.Context, r *Request) (Ack, error) {
	recs, ids, err := t.records(r)
	if err != nil {
		return Ack{}, err
	}
	if err := t.client.ProduceSync(ctx, recs...).FirstErr(); err != nil {
		return Ack{}, notify.Unavailable("kafka", 0, err)
	}
	return Ack{Accepted: r.Size, IDs: ids}, nil
}

// records makes the envelopes of a request. It returns their ids only if the run needs them.
func (t *KafkaTarget) records(r *Request) (recs []*kgo.Record, ids []string, err error) {
	now := time.Now()
	items := notify.NewBase(now).Items()
	env := notify.Envelope{Accepted: now.UnixMilli(), Caller: "load", Count: 1}
	recs = make([]*kgo.Record, 0, r.Size)
	var col notify.ReceiverWriter
	var user, address, text []byte
	for i := range r.Size {
		seq := r.Seq + uint64(i)
		v := r.data.variant(seq)
		env.Channel, _ = notify.ParseChannel(v.channel)
		env.Category, _ = notify.ParseCategory(v.category)
		topic := env.Lane().Topic()
		parts := t.parts[topic]
		if parts == 0 {
			return nil, nil, notify.Invalid("no_topics", "kafka", "has no topic "+topic)
		}
		u := r.data.user(seq)
		user = appendUser(user[:0], u)
		address = address[:0]
		if r.Step.Addresses {
			address = appendAddress(address, v.channel, u)
		}
		content := notify.Content{Body: r.Step.Payload.Text}
		if content.Body == "" {
			text = r.data.appendText(text[:0], seq)
			// The text is a quoted string of letters and spaces, so nothing needs unescaping.
			content.Body = string(text[1 : len(text)-1])
		}
		if v.channel != "sms" {
			content.Title = "Hello"
		}
		col.Reset()
		col.Append(notify.Receiver{User: user, Address: address})
		part := notify.Partition(user, parts)
		env.Chunk = notify.Chunk{Base: items.Item(i), Partition: uint16(part)}
		recs = append(recs, &kgo.Record{
			Topic: topic, Partition: part, Key: append([]byte(nil), user...),
			Value: notify.AppendEnvelopeOf(nil, &env, &content, col.Bytes()),
		})
		if r.WantIDs {
			ids = append(ids, notify.ID{Base: env.Chunk.Base}.String())
		}
	}
	return recs, ids, nil
}
