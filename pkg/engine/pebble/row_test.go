package pebble

import "github.com/notifyd/notifyd/pkg/notify"

// single is the row of a single send that was taken at once.
func single() notify.Row {
	return notify.Row{
		Key:   notify.RowKey{Chunk: notify.Chunk{Base: notify.Base{1, 2, 3, 15: 4}}},
		Count: 1, Digest: 0x1234567890abcdef, DoneUpTo: 1, StartedUpTo: 1, Starts: 1, Done: true,
		Default: notify.Exception{State: notify.Sent, Provider: "apns"}, Caller: "checkout", Channel: notify.Push, Category: notify.OTP,
		Accepted: 1_795_000_000_123, Updated: 1_795_000_000_143, Topic: "notifications-push", LogPart: 7, Offset: 123_456_789,
	}
}

// chunk is the row of 8,300 receivers, failures of which were refused.
func chunk(failures int) notify.Row {
	r := single()
	r.Count, r.DoneUpTo, r.StartedUpTo, r.Campaign = 8300, 8300, 8300, "cmp_01JH0000000000000000000000"
	for i := range failures {
		r.Exceptions = append(r.Exceptions, notify.Exception{Pos: uint32(i * 80), State: notify.Failed, Code: "apns_unregistered", Provider: "apns"})
	}
	return r
}
