// Package console is the live terminal page for operators. It shows what a server does now, its
// dead letters, operators' jobs, circuits and schedules.
//
// It only uses the server's API. Each panel makes one request (feed.go), at most once a second and
// only while the panel is visible. If the server does not answer, the console sends only one
// request at a time, with longer and longer pauses. The answers form a snapshot. A frame depends
// only on the snapshot, the state of the keys, and the size (draw.go and view_*.go). Keys never
// wait for an answer (model.go): requests run in goroutines of bubbletea, and only Update changes
// the model. Before a change of the server, the console asks for confirmation and shows the command
// that makes the same change (act.go).
//
// Start reading at model.go.
package console
