// Package console is the live terminal page for operators. It shows what a server does now, its
// dead letters, operators' jobs, circuits and schedules.
//
// It only uses the server's API. Each panel makes one request (feed.go), at most once a second while
// the panel is visible. While it is not visible, it makes no requests, or a few for the counts in
// the tab line. If the server does not answer, the console sends only one request at a time, with
// longer and longer pauses. The console draws a frame only from its model (draw.go and view_*.go):
// the latest answers, what the person has chosen with keys, the time and the terminal's size. Keys
// never wait for an answer (model.go): requests run in goroutines of bubbletea, and only Update
// changes the model. Before a change of the server, the console asks for confirmation and shows the
// command that makes the same change (act.go).
//
// Start reading at model.go.
package console
