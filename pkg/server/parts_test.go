package server

import (
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/ops"
	"github.com/notifyd/notifyd/pkg/prefs"
)

// The parts the server is made for fit where it takes them.
var (
	_ Intake = (*intake.Service)(nil)
	_ Users  = (*prefs.Service)(nil)
	_ Tail   = (*ops.Tail[api.Event])(nil)
)
