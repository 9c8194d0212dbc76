// Package console is the live terminal page for operators: what a server does now, its dead
// letters, operators' jobs, circuits and schedules.
//
// It only uses the server's API. Each panel is one request (feed.go), repeated at most once a
// second and only while the panel is visible. If the server does not answer, the console sends
// one request at a time, and less and less often. The answers form a snapshot. A frame is a pure
// function of the snapshot, of the state of the keys, and of the size (draw.go and view_*.go).
// Keys never wait for an answer (model.go): requests run in goroutines of bubbletea, and only
// Update changes the model. A change of the server asks for confirmation first, and shows the
// command that does the same (act.go).
//
// Start reading with model.go.
package console
