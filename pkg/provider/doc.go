// Package provider contains thin clients of the push, SMS and email providers APNs, FCM, Twilio and
// SendGrid. It also parses the delivery receipts that these providers send later.
//
// Every client has these functions. NewX(cfg) checks the configuration and starts no goroutine.
// Run(ctx) does the background work (connections, tokens) and returns when ctx ends. Send(ctx,
// call, report) delivers every item of a call. It reports each item exactly once before it returns,
// possibly from several goroutines. Send never repeats a request that the provider may have
// processed. The caller decides whether to repeat it.
//
// notifyd has its own clients because the public SDKs hide retries, response headers and contexts.
// For each provider, a table in *_answers.go says what the provider's answers mean.
//
// If the server cannot have received the whole request of an item, the result of the item is
// [notify.ClassUnavailable], or [notify.ClassRetry] if ctx has ended. If the server may have
// received the whole request and the answer was lost, the result is [notify.ClassAmbiguous]. No
// error, code or log line contains an address, a token or a secret. Proxies from environment
// variables are not used.
//
// Start reading at push_client.go for APNs and FCM, and at twilio.go, sendgrid.go and accounts.go
// for Twilio and SendGrid. exchange.go makes one HTTP/1 request. Package h2 makes the HTTP/2
// requests.
package provider
