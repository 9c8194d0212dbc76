package server

import (
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/users"
)

// The parts the server is made for fit where it takes them.
var (
	_ Intake = (*intake.Service)(nil)
	_ Users  = (*users.Service)(nil)
	_ Tail   = (*deadletter.Tail)(nil)
)
