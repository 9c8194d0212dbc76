package app

import (
	"context"
	"errors"
)

// doctorServers looks at engines that are servers.
func (n *Node) doctorServers(context.Context, adder) {}

// addServerParts are the inner parts of a process whose engines are servers.
func (n *Node) addServerParts(parts, Tasks) {}

// openDistributed opens the engines that are servers.
func (n *Node) openDistributed(context.Context) error {
	return errors.New("engines: distributed is not wired yet")
}
