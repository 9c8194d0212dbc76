// Package simulator simulates the four providers that notifyd talks to. It listens on
// loopback and speaks their real protocols: APNs (HTTP/2, ES256 tokens), FCM HTTP v1
// (with its OAuth token endpoint), Twilio Programmable Messaging and SendGrid v3. A
// client only needs another base URL, a CA and keys. So `notifyd dev`, the demo, the
// tests, the torture runs and the load runs exercise the clients that production uses.
//
// # Flow
//
//	listener -> protocol handler -> settleCall -> answer
//	             (apns, fcm,          |
//	              twilio, sendgrid)   +-- rules     faults and latencies
//	                                  +-- Ledger    proof: every receiver of every request
//	                                  +-- inbox     the last messages, for people
//	                                  +-- receipts  signed callbacks, later
//
// A handler only knows its protocol. It reads the request, checks it as the provider
// would, and passes the receivers and its answer to settleCall (settle.go). settleCall
// serves all four: it asks the rules, writes the ledger, waits for the latency and
// answers. It writes the ledger as soon as the body has been read, before it waits for
// the latency: a real provider may act on a request that it has read, even if the caller
// has left.
//
// # Identity
//
// Each protocol has one place that can carry the notification id:
//
//	APNs      "ntf" beside "aps" in the payload; apns-id is the attempt
//	FCM       message.data.ntf
//	Twilio    query parameter "id" of the StatusCallback URL, or else "ref"
//	SendGrid  custom_args.ntf of the personalization, or else of the request
//
// "usr" and "seq" beside the id let the ledger check the order of messages: first
// deliveries to one address of one user must have rising seq. In an SMS they are the
// end of the body, " #usr:seq".
//
// # Callbacks
//
// A fifth listener receives the calls of triggers (callback.go). It answers 200, checks
// the signature, and records the time of every call. If the callback URL has a query
// parameter due=<ms since 1970>, it measures how late the first call was, and counts
// first calls that came early.
//
// # Faults
//
// A [Rule] says which requests it applies to (provider, account, IP pool, prefix of the
// address), to how many of them (a share, the next n, until a moment) and what happens.
// A share picks requests by a pure function of the seed, the rule and the count of its
// matches. Rules are added by [Simulator.AddRule] or over HTTP on the control listener.
// That listener also serves the ledger and the inbox page; control.go lists its routes.
//
// # Life
//
// [New] derives the keys and binds the ports, so [Simulator.URLs] and
// [Simulator.Credentials] are known before anything is served. [Simulator.Run] serves
// until its context ends, and owns every goroutine. All keys derive from one seed: the
// same seed, or the same [Config.Dir], gives the same accounts, keys and CA after a
// restart. They protect nothing but the simulator itself.
//
// # What may go wrong
//
// If the disk fails, the counts of the ledger prove nothing any more: Summary has the
// error. Receipts that wait when the simulator stops are lost. Start reading at
// settleCall.
package simulator
