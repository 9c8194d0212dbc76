package engine

import "github.com/notifyd/notifyd/pkg/notify"

// IdemKey is an Idempotency-Key and its scope: a caller and a route.
type IdemKey struct {
	Caller string
	Route  string // e.g. "POST /v1/notifications"
	Key    string
}

// Reservation freezes everything that decides the ids and chunks of a request before its
// first append. So a repeat of the request writes the same records again.
type Reservation struct {
	Key         IdemKey
	Fingerprint [32]byte // of the request body
	Base        notify.Base
	Accepted    int64 // ms since 1970
	Fire        int64 // resolved fire time, ms since 1970; 0: now
	Partitions  uint16
	BlockSize   uint32
	Version     uint16 // of the intake code that split the request
	Owner       string // names the process and the call that work on the request
	LeaseUntil  int64  // ms since 1970; afterwards another owner may take over
	Expires     int64  // ms since 1970; afterwards the key may be used again
	Done        bool
	Status      int    // HTTP status of the answer, when Done
	Body        []byte // the answer, when Done
}
