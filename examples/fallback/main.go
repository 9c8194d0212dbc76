// Command fallback shows a service that falls back from SMS to email: it sends
// a text by SMS, follows its own failed feed, and sends by mail what could not be
// delivered by SMS.
//
// Against a server started with "notifyd dev":
//
//	notifyctl sim rule add error --provider twilio --code 21211
//	go run ./examples/fallback -token-file ~/.local/share/notifyd/dev/token -user bob -text 'Your code is 482913'
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
)

func main() {
	server := flag.String("server", "http://127.0.0.1:7420", "URL of notifyd")
	tokenFile := flag.String("token-file", "", "file with a token of scopes send and read")
	user := flag.String("user", "", "whom to write to")
	text := flag.String("text", "", "what to write")
	dir := flag.String("dir", "", "folder in which the service keeps what it sent and how far it read (default: a new temporary one)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *server, *tokenFile, *dir, *user, *text)
	stop()
	if !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "fallback:", err)
		os.Exit(1)
	}
}

// run sends the text, if there is one, and follows the feed until Ctrl-C; its
// error is never nil.
func run(ctx context.Context, server, tokenFile, dir, user, text string) error {
	if dir == "" {
		temporary, err := os.MkdirTemp("", "fallback-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temporary)
		dir = temporary
	}
	store, err := OpenStore(dir)
	if err != nil {
		return err
	}
	f := &Fallback{
		Client: &api.Client{
			BaseURL: server, Retries: 5, HTTPClient: &http.Client{Transport: api.NewTransport(0)},
			Token: func(context.Context) (string, error) {
				b, err := os.ReadFile(tokenFile) // each time: tokens are renewed
				return strings.TrimSpace(string(b)), err
			},
		},
		Store: store,
		Log:   func(format string, args ...any) { fmt.Printf(format+"\n", args...) },
	}
	if text != "" {
		if err := f.Send(ctx, rand.Text(), user, text); err != nil {
			return err
		}
	}
	return f.Follow(ctx)
}
