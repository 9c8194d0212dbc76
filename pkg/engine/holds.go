package engine

import "github.com/notifyd/notifyd/pkg/notify"

// Hold says that a notification in a strict lane waits for a retry or for a later
// time. Later notifications of the same user in that lane wait until this notification has
// ended.
type Hold struct {
	Lane  string
	User  string
	ID    notify.ID
	Epoch uint16
	Wake  int64 // when the notification is to be tried again, ms since 1970
}
