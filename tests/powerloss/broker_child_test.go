//go:build linux

package powerloss

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/log/embedded"
)

const (
	topic      = "t"
	group      = "g"
	partitions = 4
	inFlight   = 32 // records of a partition
)

func brokerConfig(dir string, durability embedded.Durability) embedded.Config {
	return embedded.Config{
		Dir: dir, Durability: durability, Topics: map[string]int{topic: partitions},
		SegmentBytes: 48 << 10, // small, so that many files begin and end
	}
}

// beBroker runs a broker on dir, appends to it until it is killed, and prints a line for each
// acknowledgement:
//
//	ack <partition> <offset> <value>
//	commit <partition> <offset>
//	trim <partition> <offset>      written before it is done
//
// It syncs nothing itself and flushes only its output.
func beBroker(dir, durability string) error {
	id, _ := os.ReadFile(dir + ".id") // takes the place of the database beside the log
	cfg := brokerConfig(dir, embedded.Durability(durability))
	cfg.StoreID = string(id)
	b, err := embedded.Open(cfg)
	if err != nil {
		return err
	}
	if err := writeDurably(dir+".id", b.StoreID()); err != nil {
		return err
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.Dialer(b.Dial), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(0))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
		out.Flush()
	}
	errs := make(chan error, 1)
	for p := range int32(partitions) {
		go func() { errs <- appendTo(p, b, cl, say) }()
	}
	return <-errs
}

func appendTo(p int32, b *embedded.Broker, cl *kgo.Client, say func(string, ...any)) error {
	ctx := context.Background()
	admin := kadm.NewClient(cl)
	acked := make(chan *kgo.Record, inFlight)
	errs := make(chan error, inFlight)
	for n, flying := 0, 0; ; {
		if flying < inFlight {
			value := fmt.Appendf(nil, "%d-%d-%d", os.Getpid(), p, n)
			value = append(append(value, ' '), make([]byte, 200+n*37%3000)...) // batches end anywhere in a page
			cl.Produce(ctx, &kgo.Record{Partition: p, Value: value}, func(r *kgo.Record, err error) {
				if err != nil {
					errs <- err
					return
				}
				acked <- r
			})
			n, flying = n+1, flying+1
			continue
		}
		select {
		case err := <-errs:
			return err
		case r := <-acked:
			flying--
			say("ack %d %d %s", p, r.Offset, name(r.Value))
			if r.Offset%20 == 0 && r.Offset > 0 {
				var os kadm.Offsets
				os.Add(kadm.Offset{Topic: topic, Partition: p, At: r.Offset, LeaderEpoch: -1})
				if err := admin.CommitAllOffsets(ctx, group, os); err != nil {
					return err
				}
				say("commit %d %d", p, r.Offset)
			}
			if to := r.Offset / 2; r.Offset%64 == 63 {
				say("trim %d %d", p, to)
				if err := b.TrimOnce(map[string]map[int32]int64{topic: {p: to}}); err != nil {
					return err
				}
			}
		}
	}
}

// name returns the part of a value that is different in every value.
func name(value []byte) string {
	for i, c := range value {
		if c == ' ' {
			return string(value[:i])
		}
	}
	return string(value)
}

func writeDurably(file, text string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return f.Sync()
}
