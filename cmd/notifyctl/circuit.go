package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func newCircuit(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "circuit", Short: "Look at breakers, and hold them open or closed",
		Long: `Circuits stand before each provider's route and each caller's callbacks. An open one
lets nothing through; what waits for it keeps its attempts. open and close hold one
until reset gives it back to what its calls say. A provider's is held open or reset,
in every process and across restarts. notifyctl provider test calls it all the same.`,
	}
	c.AddCommand(&cobra.Command{
		Use: "ls", Short: "List circuits", Args: cobra.NoArgs, Aliases: []string{"list"},
		RunE: func(c *cobra.Command, _ []string) error { return runCircuits(c.Context(), p) },
	})
	c.AddCommand(newAccounts(p))
	for _, a := range []struct{ name, to, short string }{
		{"open", "open", "Let nothing through until it is reset"},
		{"close", "closed", "Let everything through until it is reset"},
		{"reset", "reset", "Give it back to what its calls say"},
	} {
		c.AddCommand(&cobra.Command{
			Use: a.name + " CIRCUIT", Short: a.short, Args: term.Exact("a circuit, such as caller:shop or provider:twilio"),
			RunE: func(c *cobra.Command, args []string) error {
				return runSetCircuit(c.Context(), p, args[0], a.name, a.to)
			},
		})
	}
	return c
}

func runCircuits(ctx context.Context, p *program) error {
	cl, err := p.client()
	if err != nil {
		return err
	}
	out, err := cl.Circuits(ctx)
	if err != nil {
		return err
	}
	if err := printPage(p, out, out.Items, func() term.Table { return p.circuits(out.Items) }); err != nil {
		return err
	}
	p.more(len(out.Items), "")
	return nil
}

func (p *program) circuits(list []api.Circuit) term.Table {
	t := term.Table{{"CIRCUIT", "STATE", "SINCE", "WHY", "NEXT TRY", "IN FLIGHT", "QUEUED"}}
	for i := range list {
		c := &list[i]
		state, flight := c.State, strconv.Itoa(c.InFlight)
		if c.Pinned {
			state += " (held)"
		}
		if c.Limit > 0 {
			flight += "/" + strconv.Itoa(c.Limit)
		}
		t = append(t, []string{c.Name, state, p.whenever(c.Since), c.Why(), p.whenever(c.Until), flight, strconv.Itoa(c.Queued)})
	}
	return t
}

func runSetCircuit(ctx context.Context, p *program, name, verb, to string) error {
	cl, err := p.confirmed(changes, verb+" circuit "+name, "")
	if err != nil {
		return err
	}
	out, err := cl.SetCircuit(ctx, name, to)
	if err != nil {
		return err
	}
	return p.printer().Print(out, func() term.Table { return p.circuits([]api.Circuit{out}) })
}

func newURL(p *program) *cobra.Command {
	c := &cobra.Command{Use: "url", Short: "Look at callback URLs"}
	c.AddCommand(&cobra.Command{
		Use: "check URL", Short: "Say of each address a URL resolves to whether it may be called", Args: term.Exact("a URL"),
		Long: `check resolves the host as the server would, and judges each address; nothing is
connected to. Exit 9 when no address may be called.`,
		RunE: func(c *cobra.Command, args []string) error { return runCheckURL(c.Context(), p, args[0]) },
	})
	return c
}

func runCheckURL(ctx context.Context, p *program, raw string) error {
	cl, err := p.client()
	if err != nil {
		return err
	}
	out, err := cl.CheckURL(ctx, raw)
	if err != nil {
		return err
	}
	if err := p.printer().Print(out, func() term.Table {
		t := term.Table{{"ADDRESS", "VERDICT", "WHY"}}
		for _, a := range out.Addresses {
			verdict := "allowed"
			if !a.Allowed {
				verdict = "denied"
			}
			t = append(t, []string{a.Address, verdict, a.Why})
		}
		return t
	}); err != nil {
		return err
	}
	p.note("%s port %d", strings.TrimSpace(out.Host), out.Port)
	if !out.Allowed {
		return term.Exitf(term.ExitFindings, "%s may not be called", out.URL)
	}
	return nil
}
