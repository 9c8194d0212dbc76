package memory_test

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/engine/memory"
)

func TestHeartbeats(t *testing.T) {
	enginetest.Heartbeats(t, func(enginetest.T) (engine.Heartbeats, func() engine.Heartbeats) { return memory.NewHeartbeats(), nil }, time.Sleep)
}

func TestBroadcast(t *testing.T) {
	enginetest.Broadcast(t, func(enginetest.T) (engine.Broadcast, func() engine.Broadcast) { return memory.NewBroadcast(), nil })
}
