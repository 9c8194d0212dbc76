// Package web is the operator page: what happens now, what failed, and the way to
// send it again, as pages that need no script.
//
// It knows nothing of the stores. Each page asks the API, in this process, with
// the token of whoever looks: so the page can do what the token can and nothing
// else, every change goes into the same audit log, and each thing shown has a
// notifyctl command that shows the same, which stands beside it.
//
// It is served by the API's listener under /ui/, where TLS and tokens are. The
// admin listener has neither.
//
// A visitor pastes a token once. The browser keeps it in a cookie that is sealed
// with a key of all API processes, so each of them knows the session and none keeps
// it. Every form carries a token of its session, and what another origin sends is
// refused besides.
package web
