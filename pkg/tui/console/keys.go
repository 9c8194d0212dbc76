package console

// tab is one of the pages.
type tab int

const (
	tabOverview tab = iota
	tabLetters
	tabJobs
	tabCircuits
	tabSchedules
	tabs // how many
)

var tabNames = [tabs]string{"overview", "dead letters", "jobs", "circuits", "schedules"}

// hint is a key and what it does.
type hint struct {
	keys, does string
	changes    bool // the server
}

// hints of every page, and of each. What changes the server is a capital letter.
var (
	hintsAll = []hint{
		{"1-5, tab", "page", false}, {"j/k, arrows", "move", false}, {"g/G", "first, last", false}, {"pgup/pgdn", "a screen", false},
		{"enter", "details", false}, {"esc", "back; clear the filter", false}, {"/", "filter", false},
		{"r", "ask again now", false}, {"p", "stop and go on asking", false}, {"?", "help", false}, {"q", "quit", false},
	}
	hintsOf = [tabs][]hint{
		tabLetters:  {{"R", "replay", true}},
		tabJobs:     {{"P", "pause", true}, {"R", "resume", true}, {"X", "cancel", true}, {"A", "approve", true}},
		tabCircuits: {{"O", "hold open", true}, {"C", "hold closed", true}, {"R", "reset", true}},
	}
)
