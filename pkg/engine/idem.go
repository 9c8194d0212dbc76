package engine

import "github.com/notifyd/notifyd/pkg/notify"

// IdemKey is an Idempotency-Key and its scope: a caller and a route.
type IdemKey struct {
	Caller string
	Route  string // e.g. "POST /v1/notifications"
	Key    string
}

// Reservation stores everything that decides the ids and chunks of a request. It is stored
// before the first record of the request is appended to the log. So a repeat of the request
// writes the same records again.
type Reservation struct {
	Key         IdemKey
	Fingerprint [32]byte // hash of the request body
	Base        notify.Base
	Accepted    int64 // ms since 1970
	Fire        int64 // fire time of the request, ms since 1970; 0: now
	Partitions  uint16
	BlockSize   uint32
	Version     uint16 // version of the intake code that splits the request into chunks
	Owner       string // the process and the call that work on the request
	LeaseUntil  int64  // ms since 1970; after this time another owner may take over
	Expires     int64  // ms since 1970; after this time the key may be used for a new request
	Done        bool
	Status      int    // HTTP status of the answer; set only if Done is true
	Body        []byte // body of the answer; set only if Done is true
}
