package console

import (
	"context"
	"errors"
	"io"

	tea "charm.land/bubbletea/v2"
)

// Run shows the page on a terminal until q, Ctrl-C or the end of ctx, and leaves
// the terminal as it was. in and out are the terminal's; env is the environment,
// as of os.Environ, which says what the terminal can. The result is nil for q,
// and context.Canceled else. What is under way then is cut off.
func Run(ctx context.Context, in io.Reader, out io.Writer, env []string, o Options) error {
	return run(ctx, o, tea.WithInput(in), tea.WithOutput(out), tea.WithEnvironment(env))
}

func run(ctx context.Context, o Options, more ...tea.ProgramOption) error {
	asking, stop := context.WithCancel(ctx)
	defer stop()
	_, err := tea.NewProgram(newModel(asking, o), append([]tea.ProgramOption{tea.WithContext(ctx), tea.WithoutSignalHandler()}, more...)...).Run()
	switch {
	case errors.Is(err, tea.ErrInterrupted), ctx.Err() != nil:
		return context.Canceled
	}
	return err
}
