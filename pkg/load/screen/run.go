package screen

import (
	"context"
	"io"

	tea "charm.land/bubbletea/v2"
)

// Run shows a run on a terminal until it ends or somebody leaves the screen, says
// how, and leaves the terminal as it was. in and out are the terminal's; env is the
// environment, as of os.Environ, which says what the terminal can.
//
// The end of ctx is for the run to follow: the screen stays until the source is
// done, so that one sees the drain. A replay ends with ctx.
func Run(ctx context.Context, in io.Reader, out io.Writer, env []string, o Options) (Left, error) {
	m := newModel(o)
	p := tea.NewProgram(m, tea.WithInput(in), tea.WithOutput(out), tea.WithEnvironment(env), tea.WithoutSignalHandler(), tea.WithFPS(10))
	defer context.AfterFunc(ctx, func() {
		if m.player() != nil {
			p.Quit()
		} else {
			p.Send(stoppedMsg{})
		}
	})()
	if _, err := p.Run(); err != nil {
		return m.left, err
	}
	return m.left, nil
}

// stoppedMsg says that the run is being stopped from outside.
type stoppedMsg struct{}
