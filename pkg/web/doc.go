// Package web is the operator page: what happens now, what failed, and how to replay it. The
// pages work without scripts.
//
// The package knows no stores. Each page calls the API, in this process, with the visitor's
// token. So the page can do exactly what the token can, every change goes into the same audit
// log, and the page shows beside each item the notifyctl command that shows the same.
//
// The API's listener serves the page under /ui/, because that listener has TLS and tokens. The
// admin listener has neither.
//
// A visitor pastes a token once. The browser keeps it in a cookie that is sealed with a key that
// all API processes share: each of them accepts the session, and none stores it. Every form
// carries a token of its session, and requests from another origin are refused as well.
//
// Start reading with web.go (routes) and visit.go (one request).
package web
