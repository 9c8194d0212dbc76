package log

import "strings"

// Topics and consumer groups have the names of notify everywhere in the product. At the
// brokers each name has Conn.Prefix before it: so two installations on one Kafka do not
// meet. Nothing else translates names.

// wire returns the name that a topic or a group has at the brokers.
func (c *Conn) wire(name string) string { return c.Prefix + name }

// wires returns the names that topics have at the brokers.
func (c *Conn) wires(names []string) []string {
	if c.Prefix == "" {
		return names
	}
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = c.wire(name)
	}
	return out
}

// own returns the name of a topic that the brokers call wire.
func (c *Conn) own(wire string) string { return strings.TrimPrefix(wire, c.Prefix) }

// at returns the partition of a topic that the brokers call wire.
func (c *Conn) at(wire string, partition int32) TopicPartition {
	return TopicPartition{c.own(wire), partition}
}

// byTopic returns the nested form that the client library speaks, with the brokers' names.
func byTopic[V any](c *Conn, m map[TopicPartition]V) map[string]map[int32]V {
	out := make(map[string]map[int32]V)
	for tp, v := range m {
		topic := c.wire(tp.Topic)
		if out[topic] == nil {
			out[topic] = make(map[int32]V)
		}
		out[topic][tp.Partition] = v
	}
	return out
}

// only returns one partition in the nested form, with the brokers' name.
func (c *Conn) only(tp TopicPartition) map[string][]int32 {
	return map[string][]int32{c.wire(tp.Topic): {tp.Partition}}
}
