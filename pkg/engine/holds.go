package engine

import "github.com/notifyd/notifyd/pkg/notify"

// Hold says that a notification of a lane of strict order waits, for a retry or
// a later time: the next ones of its user wait behind it.
type Hold struct {
	Lane  string
	User  string
	ID    notify.ID
	Epoch uint16
	Wake  int64 // when it goes on, ms since 1970
}
