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
	inFlight   = 32 // unacknowledged records of a partition at the same time
)

func brokerConfig(dir string, durability embedded.Durability) embedded.Config {
	return embedded.Config{
		Dir: dir, Durability: durability, Topics: map[string]int{topic: partitions},
		SegmentBytes: 48 << 10, // small, so that the broker creates and closes many files
	}
}

// beBroker runs a broker on the folder dir and appends records to it until this process is killed.
// It prints a line for each acknowledged record, for each committed offset, and for each trim:
//
//	ack <partition> <offset> <value>
//	commit <partition> <offset>
//	trim <partition> <offset>      printed before the trim
//
// Except for the file with the store id, beBroker syncs nothing: only the broker syncs the log.
func beBroker(dir, durability string) error {
	id, _ := os.ReadFile(dir + ".id") // in production, the database keeps the store id
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

// name returns the text before the first space of a value. Every value has a different name.
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
