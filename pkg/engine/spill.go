package engine

// Spilled is one record that was stored while the log was down, and is appended later.
type Spilled struct {
	Seq   uint64 // set by Push, ascending
	Topic string
	Key   []byte
	Part  int32
	Value []byte
	At    int64 // when it was spilled, ms since 1970
}
