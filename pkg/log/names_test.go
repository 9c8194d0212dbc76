package log

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// Two installations with prefixes of their own, and one without a prefix, use the same names on the
// same brokers. They see nothing of one another: no topics, groups or positions, and no trimming.
func TestPrefixesDoNotMeet(t *testing.T) {
	onClusters(t, 2, func(t *testing.T, b *broker) {
		topic, group := b.topic, b.group
		with := func(prefix string) *broker {
			conn := b.conn
			conn.Prefix = prefix
			return &broker{Cluster: b.Cluster, conn: conn, topic: topic, group: group}
		}
		all := map[string]*broker{"": b, "red.": with("red."), "blue-": with("blue-")}
		for prefix, o := range all {
			if prefix != "" {
				b.deleteLater(t, prefix+topic)
				if _, err := o.admin(t).EnsureTopics(t.Context(), map[string]int{topic: 2}); err != nil {
					t.Fatal(err)
				}
			}
			rec := Record{Topic: topic, Partition: 1, Value: []byte("of " + prefix)}
			o.append(t, []Record{rec, rec})
		}
		tp := TopicPartition{topic, 1}
		for prefix, o := range all {
			got := make(chan string, 100)
			m := start(t, GroupConfig{Conn: o.conn, Group: group, Topics: []string{topic}}, handlerFunc(func(_ context.Context, at TopicPartition, msgs []*Msg) error {
				for _, msg := range msgs {
					got <- fmt.Sprint(at, msg.Topic, string(msg.Value))
					msg.Done()
				}
				return nil
			}))
			for range 2 {
				if s, want := <-got, fmt.Sprint(tp, topic, "of "+prefix); s != want {
					t.Errorf("the group with prefix %q got %q, want %q", prefix, s, want)
				}
			}
			o.waitCommitted(t, tp, 2)
			if stats := m.Stats(); len(stats.Partitions) != 2 || stats.Resets > 0 || stats.Partitions[0].TP.Topic != topic {
				t.Errorf("prefix %q: %+v", prefix, stats)
			}
			if err := m.wait(); err != nil {
				t.Error(err)
			}
			if len(got) > 0 {
				t.Errorf("prefix %q got %q as well", prefix, <-got)
			}
			o.reads(t, tp, "of "+prefix)
		}
		red, blue := all["red."].admin(t), all["blue-"].admin(t)
		if err := red.DeleteRecords(t.Context(), map[TopicPartition]int64{tp: 2}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			a    *Admin
			want int64
		}{{red, 2}, {blue, 0}, {b.admin(t), 0}} {
			if at, err := c.a.StartOffsets(t.Context(), topic); err != nil || at[tp] != c.want {
				t.Errorf("prefix %q starts at %d, want %d; %v", c.a.cfg.Conn.Prefix, at[tp], c.want, err)
			}
		}
		if c, err := blue.Describe(t.Context(), topic); err != nil || len(c.Topics) != 1 || c.Topics[0].Name != topic || len(c.Topics[0].Settings) == 0 {
			t.Errorf("%+v, %v", c.Topics, err)
		} else if f := c.Check(AdminConfig{Conn: blue.cfg.Conn, MinInSync: 7}, map[string]int{topic: 2}); !slices.ContainsFunc(f, func(f Finding) bool { return strings.Contains(f.Repair, "--entity-name blue-"+topic+" ") }) {
			t.Errorf("%+v", f)
		}
		// These are the names that the brokers themselves use.
		plain := b.admin(t)
		if has, err := plain.Partitions(t.Context(), topic, "red."+topic, "blue-"+topic); err != nil || len(has) != 3 {
			t.Errorf("%v, %v", has, err)
		}
		for _, g := range []string{group, "red." + group, "blue-" + group} {
			if at := b.committed(t, g); len(at) != 1 {
				t.Errorf("group %s: %v", g, slices.Collect(maps.Keys(at)))
			}
		}
	})
}

// reads reads, without a group, a partition with two records, and checks that both have the given
// value.
func (b *broker) reads(t *testing.T, tp TopicPartition, value string) {
	t.Helper()
	r, err := NewReader(b.conn)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if one, err := r.Fetch(t.Context(), tp, 1); err != nil || one.Topic != tp.Topic || string(one.Value) != value {
		t.Errorf("%+v, %v; want %q", one, err, value)
	}
	if ends, err := r.HighWater(t.Context(), tp.Topic); err != nil || ends[tp] != 2 {
		t.Errorf("%v, %v", ends, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	n := 0
	if err := r.Run(ctx, map[TopicPartition]int64{tp: 0}, func(at TopicPartition, recs []Record) error {
		for _, rec := range recs {
			if at != tp || rec.Topic != tp.Topic || string(rec.Value) != value {
				t.Errorf("read %v %+v, want %v %q", at, rec, tp, value)
			}
		}
		if n += len(recs); n >= 2 {
			stop()
		}
		return nil
	}); err != nil || n != 2 {
		t.Errorf("%d records, %v", n, err)
	}
}
