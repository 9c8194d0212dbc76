// Package provider holds thin clients of the push, SMS and email providers APNs, FCM, Twilio and
// SendGrid. It also parses the delivery receipts that they send later.
//
// Every client has the same shape. NewX(cfg) checks the configuration and starts nothing.
// Run(ctx) does the background work (connections, tokens) and returns when ctx ends. Send(ctx,
// call, report) delivers every item of a call and calls report exactly once for each before it
// returns, possibly from several goroutines. Send never repeats a request that the provider may
// have processed: the caller decides whether to repeat it.
//
// The clients are our own because the public SDKs hide retries, response headers and contexts.
// For each provider one table of data says what its answers mean, in its *_answers.go.
//
// An item whose request was provably never complete on the wire is [notify.ClassUnavailable]. If
// the request was complete and the answer was lost, the item is [notify.ClassAmbiguous]. No
// error, code or log line contains an address, a token or a secret. Proxies named by the
// environment are not used.
//
// Start reading at push_client.go for APNs and FCM, and at twilio.go, sendgrid.go and
// accounts.go for the others. exchange.go makes one HTTP/1 request; package h2 makes those of
// HTTP/2.
package provider
