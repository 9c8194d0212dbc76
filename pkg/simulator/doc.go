// Package simulator simulates the four providers that notifyd talks to. It listens on loopback and
// speaks their real protocols: APNs (HTTP/2, ES256 tokens), FCM HTTP v1 (with its OAuth token
// endpoint), Twilio Programmable Messaging and SendGrid v3. A client of the real providers needs
// only the base URL, the CA and the keys of the simulator. So `notifyd dev`, the demo, the tests,
// the torture runs and the load runs use the same clients as production.
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
// A handler knows only its protocol. It reads a request and checks it as the provider would. Then
// it passes the receivers and its answer to settleCall (settle.go). settleCall serves all four
// providers: it asks the rules, writes the ledger, waits for the latency and answers. It writes the
// ledger before it waits for the latency. The reason is that a real provider may act on a request
// as soon as it has read the request, even if the caller has closed the connection.
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
// The fields "usr" and "seq" in the same place let the ledger check the order of messages. If the
// first delivery of a message has a lower seq than an earlier first delivery to the same user at
// the same address, the message is out of order. In an SMS the two fields are the end of the body:
// " #usr:seq".
//
// # Callbacks
//
// A fifth listener receives the calls of triggers (callback.go). It answers 200, checks the
// signature, and records the time of every call. The callback URL may have a query parameter due=<ms
// since 1970>. Then the listener measures how late the first call was, and counts first calls that
// came before the due time.
//
// # Faults
//
// A [Rule] describes requests by provider, account, IP pool, template, notification id or prefix of
// the address. It selects a share of these requests, the next n requests, or all requests until a
// given time. And it says what happens to the selected requests. Which requests belong to a share
// depends only on the seed, the rule, and the number of requests that have matched the rule before.
// Rules are added by [Simulator.AddRule] or over HTTP on the control listener. The control listener
// also serves the ledger and the inbox page; control.go lists its routes.
//
// # Life
//
// [New] derives the keys and binds the ports. So [Simulator.URLs] and [Simulator.Credentials] are
// known before anything is served. [Simulator.Run] serves until its context ends, and owns every
// goroutine. All keys are derived from one seed: with the same seed, or the same [Config.Dir], the
// accounts, keys and CA are the same after a restart. The keys protect only the simulator itself.
//
// # What may go wrong
//
// After an error of the disk, the counts of the ledger prove nothing. Summary then contains the
// error. Receipts that still wait when the simulator stops are lost. Start reading at settleCall.
package simulator
