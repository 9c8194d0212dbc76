package engine

// Spilled is one record that was stored while the log was down. It is appended to the log
// later.
type Spilled struct {
	Seq   uint64 // set by Push, ascending
	Topic string
	Key   []byte
	Part  int32
	Value []byte
	At    int64 // when the request of the record was accepted, ms since 1970
}
