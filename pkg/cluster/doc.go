// Package cluster holds what a notifyd process does among others over the same stores:
// which roles it has, which part of the work it owns, whose clock is right, and the
// changes of operators that every process follows. It knows contracts of pkg/engine and
// no engine. A process with embedded engines is alone: it has lanes, campaigns and
// circuits, and none of the rest.
package cluster
