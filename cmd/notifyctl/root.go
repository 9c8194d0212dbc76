package main

import (
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/term"
)

// The groups of the help page.
const (
	groupSend  = "send"
	groupLook  = "look"
	groupRun   = "run"
	groupSetup = "setup"
)

// commands is every command, by its group of the help page; a new one is added
// here.
func commands(p *program) map[string][]*cobra.Command {
	return map[string][]*cobra.Command{
		groupSend:  {newSend(p), newSchedule(p), newReschedule(p), newTrigger(p), newCancel(p), newUser(p)},
		groupLook:  {newShow(p), newWhy(p), newList(p), newCampaign(p), newTail(p), newFailed(p), newExplain(p)},
		groupRun:   {newDoctor(p), newUI(p), newLag(p), newRates(p), newBackup(p), newArchive(p), newDLQ(p), newJob(p), newReconcile(p), newAudit(p), newLane(p), newSuppression(p), newCircuit(p), newProvider(p), newCaller(p), newURL(p), newSim(p), newLoad(p), newDashboards(p), newPlan(p)},
		groupSetup: {newContext(p), newVersion(p), newDebug(p)},
	}
}

func newRoot(p *program) *cobra.Command {
	root := &cobra.Command{
		Use: "notifyctl", Version: version,
		Short: "Send notifications and see what became of them",
		Long: `notifyctl sends notifications through notifyd, shows what became of them, and
helps those who run it.

Start a server with "notifyd dev", which also writes a context for notifyctl, and
  notifyctl send --channel push --user ann --title Hello --body 'It works' --wait`,
	}
	root.InitDefaultVersionFlag() // else "help" does not list it
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.AddGroup(
		&cobra.Group{ID: groupSend, Title: "Send:"},
		&cobra.Group{ID: groupLook, Title: "Look:"},
		&cobra.Group{ID: groupRun, Title: "Operate:"},
		&cobra.Group{ID: groupSetup, Title: "Set up:"},
	)
	for group, list := range commands(p) {
		for _, c := range list {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	root.AddCommand(topics()...)
	root.SetHelpCommandGroupID(groupSetup)
	root.SetCompletionCommandGroupID(groupSetup)
	p.global.add(p, root)
	root.PersistentPreRunE = func(c *cobra.Command, args []string) error {
		p.running, p.args = c, args
		return p.global.check(c.Flags().Changed("timeout"), p.getenv("NOTIFYCTL_TIMEOUT"))
	}
	term.Polish(root)
	return root
}
