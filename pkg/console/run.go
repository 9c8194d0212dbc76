package console

import (
	"context"
	"io"

	tea "charm.land/bubbletea/v2"
)

// Run shows the page on a terminal until q, Ctrl-C or the end of ctx, and leaves
// the terminal as it was. in and out are the terminal's; env is the environment,
// as of os.Environ, which says what the terminal can. The result is nil for q,
// and context.Canceled for Ctrl-C and the end of ctx. What is under way then is
// cut off.
func Run(ctx context.Context, in io.Reader, out io.Writer, env []string, o Options) error {
	asking, stop := context.WithCancel(ctx)
	defer stop()
	m := newModel(asking, o)
	p := tea.NewProgram(m, tea.WithInput(in), tea.WithOutput(out), tea.WithEnvironment(env), tea.WithoutSignalHandler())
	// Not tea.WithContext, nor tea.Interrupt: a program that is killed so leaves
	// its reader of keys behind.
	defer context.AfterFunc(ctx, p.Quit)()
	if _, err := p.Run(); err != nil {
		return err
	}
	if m.interrupted || ctx.Err() != nil {
		return context.Canceled
	}
	return nil
}
