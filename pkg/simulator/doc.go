// Package simulator serves the four providers notifyd talks to, on loopback and
// over their real protocols: APNs (HTTP/2, ES256 tokens), FCM HTTP v1 (with its
// OAuth token endpoint), Twilio Programmable Messaging and SendGrid v3. A client
// needs nothing but another base URL, a CA and keys, so `notifyd dev`, the demo,
// the tests, the torture runs and the load runs exercise the clients that
// production uses.
//
// # Shape
//
//	listener -> protocol handler -> settle -> answer
//	             (apns, fcm,          |
//	              twilio, sendgrid)   +-- rules     what goes wrong, and how slow it is
//	                                  +-- Ledger    proof: every receiver of every request
//	                                  +-- inbox     the last messages, for people
//	                                  +-- receipts  signed callbacks, later
//
// A handler only knows its protocol: it reads the request, checks it as the
// provider would, and hands settle the receivers it found and the answer it
// would give. settle (settle.go) is the same for all four: it asks the rules,
// writes the ledger, waits out the latency and answers. The ledger is written
// when the body has been read and before the latency is waited out: what a
// provider has read it may act on, whether or not the caller is still there.
//
// # Identity
//
// The notification id is found where the provider's protocol has room for it:
//
//	APNs      "ntf" beside "aps" in the payload; apns-id is the attempt
//	FCM       message.data.ntf
//	Twilio    query parameter "id" of the StatusCallback URL, or else "ref"
//	SendGrid  custom_args.ntf of the personalization, or else of the request
//
// "usr" and "seq" beside it let the ledger check order: first deliveries to one
// address of one user must come with rising seq. In an SMS they are the end of
// the body, " #usr:seq".
//
// # Callbacks
//
// A fifth listener takes the calls of triggers (callback.go): it answers 200,
// checks the signature, and remembers every call with its moment. A query
// parameter due=<ms since 1970> in the callback URL makes it count how late the
// first call was, and whether any came early.
//
// # Faults
//
// A [Rule] says which requests (provider, account, IP pool, prefix of the
// address), how many of them (a share, the next n, until a moment) and what
// happens. Which requests a share picks is a pure function of the seed, the rule
// and the count of its matches. Rules come by [Simulator.AddRule] or by HTTP on
// the control listener, which also has the ledger and the inbox page; the routes
// stand in control.go.
//
// # Life
//
// [New] derives the keys and binds the ports, so [Simulator.URLs] and
// [Simulator.Credentials] are known before anything is served; [Simulator.Run]
// serves until its context ends and owns every goroutine. All keys derive from
// one seed: the same seed, or the same [Config.Dir], gives the same accounts,
// keys and CA after a restart. They protect nothing but the simulator itself.
package simulator
