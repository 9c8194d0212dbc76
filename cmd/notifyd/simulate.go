package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/simulator"
	"github.com/notifyd/notifyd/pkg/term"
)

func newSimulate(p *program) *cobra.Command {
	var dir, control, ledger, receipts string
	var latency, p99 time.Duration
	var ports []string
	c := &cobra.Command{
		Use: "simulate", Short: "Run the simulated providers alone", Args: cobra.NoArgs,
		Long: `simulate serves APNs, FCM, Twilio and SendGrid on loopback, over their real
protocols. Its folder holds the CA and the credentials clients need; its control
listener takes rules (outages, throttling, resets, hangs), and shows the ledger of
everything received and an inbox.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if dir == "" {
				dir = app.DataFolder(p.getenv, "simulator")
			}
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			lat := simulator.Constant(latency)
			if p99 > 0 {
				lat = simulator.Lognormal(latency, p99)
			}
			if len(ports) != 0 && len(ports) != 4 {
				return term.Usage("--listen needs four addresses: APNs, FCM, Twilio, SendGrid")
			}
			for len(ports) < 4 {
				ports = append(ports, "")
			}
			s, err := simulator.New(simulator.Config{
				Dir: dir, ControlAddr: control, LedgerFile: ledger,
				APNs:     simulator.APNsConfig{Addr: ports[0], Latency: lat},
				FCM:      simulator.FCMConfig{Addr: ports[1], Latency: lat},
				Twilio:   simulator.TwilioConfig{Addr: ports[2], Latency: lat, RetryAfter: time.Second},
				SendGrid: simulator.SendGridConfig{Addr: ports[3], Latency: lat},
				Receipts: simulator.Receipts{Delay: simulator.Constant(200 * time.Millisecond), SendGridURL: receipts},
			})
			if err != nil {
				return err
			}
			u := s.URLs()
			fmt.Fprintf(p.out, "simulated providers\n  APNs      %s\n  FCM       %s   tokens: %s\n  Twilio    %s\n  SendGrid  %s\n  Control   %s   inbox: %s\n  Files     %s\n",
				u.APNs, u.FCM, u.FCMToken, u.Twilio, u.SendGrid, u.Control, u.Inbox, dir)
			return s.Run(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&dir, "dir", "", "folder of keys, CA and credentials (default: $XDG_DATA_HOME/notifyd/simulator)")
	f.StringVar(&control, "control", "127.0.0.1:0", "address of the control listener")
	f.StringSliceVar(&ports, "listen", nil, "addresses of APNs, FCM, Twilio and SendGrid (default: free loopback ports)")
	f.StringVar(&ledger, "ledger-file", "", "file to which the simulators append every receiver they were sent")
	f.StringVar(&receipts, "sendgrid-webhook", "", "URL of the event webhook")
	f.DurationVar(&latency, "latency", 0, "median time to an answer; 0: at once")
	f.DurationVar(&p99, "latency-p99", 0, "99th percentile of the time to an answer; 0: every answer takes the median")
	return c
}
