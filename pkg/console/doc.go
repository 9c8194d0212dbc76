// Package console is the live terminal page for those on call: what a server
// does now, its dead letters, operators' jobs, circuits, and what is to come.
//
// It knows the server by its API alone. Each panel is one request, asked for
// again at most once a second and only while it is to be seen (feed.go); a
// server that is away is asked by one request at a time, ever more seldom. The
// answers are a snapshot, and a frame is a pure function of the snapshot, of
// what the keys chose, and of a size (draw.go and view_*.go). The keys never
// wait for an answer (model.go). What changes the server asks first, and shows
// the command line that does the same (act.go).
package console
