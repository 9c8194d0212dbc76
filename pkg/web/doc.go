// Package web is the operator page. It shows what happens now and what failed, and it can replay
// dead letters. The pages work without scripts.
//
// The package does not read the stores. Each page calls the API, in this process, with the
// visitor's token. So the page can do exactly what the token allows. Every change is recorded in
// the audit log, like any change through the API. Next to each item the page shows the notifyctl
// command that shows the same item.
//
// The API's listener serves the page under /ui/, because that listener has TLS and checks tokens.
// The admin listener does neither.
//
// A visitor pastes a token once. The browser keeps it in a cookie that is sealed with a key. All
// API processes share this key, so each process accepts the session, and no process stores it.
// Every form contains a token of its session. Requests from another origin are also refused.
//
// Start reading at web.go (routes) and visit.go (one request).
package web
