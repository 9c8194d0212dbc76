// Package provider holds thin clients of the push, SMS and email providers:
// APNs, FCM, Twilio and SendGrid, and what comes back from them later as
// delivery receipts.
//
// Every client has the same shape. NewX(cfg) checks the configuration and
// starts nothing; Run(ctx) owns the background work (connections, tokens) and
// returns when ctx ends; Send(ctx, call, report) delivers every item of a call
// and calls report exactly once for each, possibly from several goroutines,
// before it returns. A Send never repeats a call the provider may have taken:
// whether to do that is the policy of whoever calls.
//
// The clients are our own because the public SDKs hide retries, response
// headers and contexts. What a provider's answer means stands in one table per
// provider, as data, in its *_answers.go.
//
// An item whose request was provably never complete on the wire is
// [notify.ClassUnavailable]; once it was, a lost answer is
// [notify.ClassAmbiguous]. No error, code or log line carries an address, a
// token or any secret. Proxies of the environment are not used.
package provider
