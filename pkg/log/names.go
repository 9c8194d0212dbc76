package log

import "strings"

// Inside the product, topics and consumer groups have the names of package notify. At the brokers each
// name has the prefix Conn.Prefix, so that two installations can use the same Kafka. Only the functions
// below convert between product names and wire names.

// wireName returns the wire name of a topic or a group, which is its name at the brokers.
func (c *Conn) wireName(name string) string { return c.Prefix + name }

// wireNames returns the wire names of several topics or groups.
func (c *Conn) wireNames(names []string) []string {
	if c.Prefix == "" {
		return names
	}
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = c.wireName(name)
	}
	return out
}

// productName returns the product name of the topic that has this wire name.
func (c *Conn) productName(wire string) string { return strings.TrimPrefix(wire, c.Prefix) }

// fromWire returns a partition of the topic that has this wire name.
func (c *Conn) fromWire(wire string, partition int32) TopicPartition {
	return TopicPartition{c.productName(wire), partition}
}

// nestByTopic converts a map by partition into the client library's nested form, with wire names.
func nestByTopic[V any](c *Conn, m map[TopicPartition]V) map[string]map[int32]V {
	out := make(map[string]map[int32]V)
	for tp, v := range m {
		topic := c.wireName(tp.Topic)
		if out[topic] == nil {
			out[topic] = make(map[int32]V)
		}
		out[topic][tp.Partition] = v
	}
	return out
}

// nestOne returns one partition in the client library's nested form, with its wire name.
func (c *Conn) nestOne(tp TopicPartition) map[string][]int32 {
	return map[string][]int32{c.wireName(tp.Topic): {tp.Partition}}
}
