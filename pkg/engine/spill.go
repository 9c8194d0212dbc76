package engine

// Spilled is one record that waits for the log to come back.
type Spilled struct {
	Seq   uint64 // set by Push, ascending
	Topic string
	Key   []byte
	Part  int32
	Value []byte
	At    int64 // when it was spilled, ms since 1970
}
