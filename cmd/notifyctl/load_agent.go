package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/agent"
	"github.com/notifyd/notifyd/pkg/load/launch"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// agentOptions contains the flags of "load agent": where the agent listens, and which controllers
// it accepts.
type agentOptions struct {
	listen, cert, key, clientCA string
	byServer                    bool // --server was given
}

func newLoadAgent(p *program) *cobra.Command {
	var o agentOptions
	c := &cobra.Command{
		Use: "agent", Short: "Send a part of the load of runs that a controller starts", Args: cobra.NoArgs,
		Long: `agent waits for controllers (notifyctl load run --agents). From this machine it sends
a segment of a controller's scenario to the server that the controller names. It works
for one run at a time, and stops sending if the controller ends or is silent for 3 s.

Who may start runs:
  --client-ca FILE   controllers with a certificate by this authority (mutual TLS)
  --server URL       controllers whose bearer token has the scope operate on this server
With both flags, a controller needs both. Without --cert the agent listens on a loopback
address only, where every user of this machine can reach it. load agent certs makes
certificates.

The agent sends load only to hosts to which load run on this machine would send it.`,
		Example: `  notifyctl load agent
  notifyctl load agent --listen 10.0.0.5:7431 --cert agent.pem --key agent-key.pem --client-ca ca.pem`,
		RunE: func(c *cobra.Command, _ []string) error {
			o.byServer = p.global.server != ""
			return runAgent(c.Context(), p, &o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:7431", "address and port at which the agent listens")
	f.StringVar(&o.cert, "cert", "", "the agent's certificate, in PEM")
	f.StringVar(&o.key, "key", "", "the private key of --cert, in PEM")
	f.StringVar(&o.clientCA, "client-ca", "", "certificate of the authority that signed the controllers' certificates, in PEM")
	c.AddCommand(newLoadAgentCerts(p))
	return c
}

func newLoadAgentCerts(p *program) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "certs HOST...", Short: "Make certificates for agents and their controller", Args: term.AtLeast(1, "hosts of agents"),
		Long: `certs makes an authority and two certificates that it signs, valid for 90 days: agent.pem
for agents on the given hosts (names or addresses), and controller.pem for load run. The
key of the authority is not kept. Copy ca.pem, agent.pem and agent-key.pem to each
agent, in a way that keeps the key secret.`,
		Example: "  notifyctl load agent certs --out certs load1.internal load2.internal",
		RunE: func(_ *cobra.Command, hosts []string) error {
			if err := os.MkdirAll(out, 0o700); err != nil {
				return term.Usage("--out: %s", err)
			}
			if err := agent.WriteCertificates(out, hosts, time.Now()); err != nil {
				return err
			}
			in := func(file string) string { return term.Quote(filepath.Join(out, file)) }
			p.note("on each agent:     notifyctl load agent --listen HOST:7431 --cert %s --key %s --client-ca %s", agent.AgentFile, agent.AgentKeyFile, agent.CAFile)
			p.note("on the controller: notifyctl load run SCENARIO.yaml --agents HOST:7431,... --agent-ca %s --agent-cert %s --agent-key %s", in(agent.CAFile), in(agent.ControllerFile), in(agent.ControllerKeyFile))
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", ".", "folder for the files")
	return c
}

func runAgent(ctx context.Context, p *program, o *agentOptions) error {
	if (o.cert == "") != (o.key == "") || o.clientCA != "" && o.cert == "" {
		return term.Usage("--cert and --key belong together: give both or none; --client-ca needs both")
	}
	host, _, err := net.SplitHostPort(o.listen)
	if err != nil {
		return term.Usage("--listen %q must be an address and a port, such as 127.0.0.1:7431", o.listen)
	}
	loopback := o.cert == ""
	switch {
	case loopback && !notify.LoopbackHost(host):
		return term.Usage("--listen %s: without --cert an agent listens on loopback addresses only", o.listen)
	case !loopback && o.clientCA == "" && !o.byServer:
		return term.Usage("--cert needs --client-ca or --server, which say who may start runs")
	}
	s := &agent.Server{Loopback: loopback, Version: version, Note: p.note, Open: func(ctx context.Context, sc *load.Scenario, aim *agent.Aim, token func(context.Context) (string, error)) (load.Config, func(), error) {
		return openAim(ctx, p, sc, aim, token)
	}}
	if o.byServer {
		t, err := p.target()
		if err != nil {
			return err
		}
		s.Check = newTokenCheck(p, &t)
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if !loopback {
		cfg, err := agent.ServerTLS(o.cert, o.key, o.clientCA)
		if err != nil {
			return errors.Join(term.Usage("the certificates cannot be used: %s", err), ln.Close())
		}
		ln = tls.NewListener(ln, cfg)
	}
	p.note("agent: listens at %s", ln.Addr())
	hs := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	var wg sync.WaitGroup
	defer wg.Wait()
	ended := make(chan error, 1)
	wg.Go(func() { ended <- hs.Serve(ln) })
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// The current run ended because ctx ended. Wait at most 10 s until the figures of its last
	// second have reached the controller.
	limit, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer stop()
	if hs.Shutdown(limit) != nil {
		_ = hs.Close()
	}
	return context.Canceled
}

// newTokenCheck returns a function that checks the token of a controller. A token is accepted if
// the server of t accepts it for the scope operate.
func newTokenCheck(p *program, t *target) func(context.Context, string) error {
	return func(ctx context.Context, token string) error {
		ctx, stop := context.WithTimeout(ctx, 2*time.Second)
		defer stop()
		cl := p.clientOf(t)
		cl.Retries, cl.Token = 0, func(context.Context) (string, error) { return token, nil }
		_, err := cl.Debug(ctx) // a request that needs this scope
		return err
	}
}

// openAim connects to the server that the controller chose as the target of the load. The safety
// rules of load runs apply on this machine too.
func openAim(ctx context.Context, p *program, s *load.Scenario, aim *agent.Aim, token func(context.Context) (string, error)) (load.Config, func(), error) {
	env, err := launch.Open(ctx, s, &launch.Options{
		Note: p.note, Version: version, Grant: aim.Grant, Timeout: aim.Timeout, Kafka: aim.Kafka, NoCheck: true, NoCalibration: aim.NoCalibration,
		Context: func() (*api.Client, string, error) {
			cl := p.clientOf(&target{server: aim.Server, token: token})
			if aim.Token == "" {
				cl.Token = nil
			}
			return cl, "", nil
		},
	})
	if err != nil {
		return load.Config{}, nil, err
	}
	return env.Config, env.Close, nil
}

// controllerOptions contains the flags that name the agents of a run and say how to connect to
// them.
type controllerOptions struct {
	agents        []string
	ca, cert, key string
}

func (o *controllerOptions) add(c *cobra.Command) {
	f := c.Flags()
	f.StringSliceVar(&o.agents, "agents", nil, "HOST:PORT of the agents that send the load instead of this process: notifyctl load agent")
	f.StringVar(&o.ca, "agent-ca", "", "the authority of the agents' certificates, in PEM; without it agents are on this machine")
	f.StringVar(&o.cert, "agent-cert", "", "the certificate that the agents know this controller by, in PEM")
	f.StringVar(&o.key, "agent-key", "", "the key of --agent-cert, in PEM")
}

// dialAgents connects to the agents of a run. It returns nil if there are none. Then this process
// itself sends the load.
func dialAgents(ctx context.Context, p *program, s *load.Scenario, o *loadOptions, cfg *load.Config) (*agent.Fleet, error) {
	c := &o.control
	if len(c.agents) == 0 {
		if c.ca != "" || c.cert != "" || c.key != "" {
			return nil, term.Usage("--agent-ca, --agent-cert and --agent-key need --agents")
		}
		return nil, nil
	}
	opt := agent.Options{Agents: c.agents}
	if (c.cert == "") != (c.key == "") || c.cert != "" && c.ca == "" {
		return nil, term.Usage("--agent-cert and --agent-key belong together: give both or none; they need --agent-ca")
	}
	if c.ca != "" {
		var err error
		if opt.TLS, err = agent.ClientTLS(c.ca, c.cert, c.key); err != nil {
			return nil, term.Usage("the certificates cannot be used: %s", err)
		}
	}
	grant, err := o.grantToken(p)
	if err != nil {
		return nil, err
	}
	filled := s.WithDefaults()
	src, err := filled.Source()
	if err != nil {
		return nil, err
	}
	opt.Job = agent.Start{
		Scenario: src.YAML, Promises: cfg.Ledger != nil, Steerable: cfg.Steerable,
		Aim: agent.Aim{Grant: grant, Callback: cfg.Callback, Kafka: o.kafka, Timeout: p.global.timeout, NoCalibration: o.noCalibration},
	}
	if !s.OnlyNull() {
		t, err := p.target()
		if err != nil {
			return nil, err
		}
		opt.Job.Aim.Server, opt.Token = t.server, t.token
	}
	for i := range filled.Phases {
		for _, st := range filled.Phases[i].Steps {
			if st.Ordered && int(st.Users.Count)%(st.Workers*len(c.agents)) != 0 {
				p.note("warning: step %s is ordered, and its %s users are no multiple of %d workers times %d agents: a user's messages come from several agents, which do not wait for each other", st.Name, count(int(st.Users.Count)), st.Workers, len(c.agents))
			}
		}
	}
	f, err := agent.Dial(ctx, opt)
	if err != nil {
		return nil, err
	}
	for _, a := range f.Agents() {
		p.note("agent %s: its clock is %v off, give or take %v", a.Name, a.Offset.Round(time.Microsecond), a.Uncertainty.Round(time.Microsecond))
	}
	return f, nil
}
