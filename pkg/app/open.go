package app

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// opener opens the engines of a process and sets the fields of its stores.
type opener struct{ *Node }

// open opens the engines, and the clients of the log.
func (n opener) open() error {
	ctx := context.Background()
	engines := n.openEmbedded
	if n.cfg.Engines == EnginesDistributed {
		engines = n.openDistributed
	}
	if err := engines(ctx); err != nil {
		return err
	}
	pc := log.ProducerConfig{Conn: n.st.conn, Linger: linger(n.cfg.Log.Linger), AppendTimeout: n.cfg.Kafka.AppendTimeout, Partitions: n.st.partitions}
	if n.embedded != nil {
		// The embedded broker is always available, but its disk can be slow. So an append may take
		// long.
		pc.Brokers, pc.AppendTimeout, pc.Appended = log.OneBroker, 20*time.Second, n.embedded.broker.Appended
	}
	var err error
	if n.producer, err = log.NewProducer(pc); err != nil {
		return err
	}
	n.closers = append(n.closers, silently(n.producer.Close))
	if n.reader, err = log.NewReader(n.st.conn); err != nil {
		return err
	}
	n.closers = append(n.closers, silently(n.reader.Close))
	if n.admin == nil {
		return n.openAdmin()
	}
	return nil
}

// openAdmin makes the client that reads offsets, commits and partitions of the log.
func (n opener) openAdmin() (err error) {
	if n.admin, err = log.NewAdmin(log.AdminConfig{Conn: n.st.conn}); err == nil {
		n.closers = append(n.closers, silently(n.admin.Close))
	}
	return err
}

// listen opens the listeners of the API and of the admin routes. It also stores the API's actual
// address in the configuration, because with port 0 the address is known only after listening.
func (n opener) listen(ctx context.Context) (err error) {
	cfg := &n.cfg
	if n.listener == nil {
		if n.listener, err = Listen(ctx, "api.listen", cfg.API.Listen); err != nil {
			return err
		}
	}
	if cfg.API.Admin != "" {
		if n.adminListener, err = Listen(ctx, "api.admin", cfg.API.Admin); err != nil {
			return err
		}
	}
	cfg.API.Listen = n.listener.Addr().String()
	return nil
}

// linger converts the setting log.linger to the producer's setting. In log.linger 0 means no linger. In
// the producer's setting 0 means the default, and -1 means no linger.
func linger(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// topics returns the topics of the log with their numbers of partitions.
func topics(cfg *Config) map[string]int {
	ts := map[string]int{notify.TopicFailed: 1, notify.TopicOutcomes: 1, notify.TopicPoison: 1, trigger.TopicDLQ: 1}
	for _, l := range notify.Lanes() {
		ts[l.Topic()] = cfg.partitions(l.Channel)
		ts[l.DLQTopic()] = cfg.partitions(l.Channel)
	}
	return ts
}
