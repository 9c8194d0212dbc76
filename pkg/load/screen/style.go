package screen

import "github.com/notifyd/notifyd/pkg/term/paint"

// styles are those of a frame, with the colours of lines and of densities.
type styles struct {
	paint.Styles

	series [seriesKinds]paint.Paint
	heat   []paint.Paint // the least dense first
	shades []rune        // of the heat map, the least dense first
	ascii  bool
}

// The colours of density: cividis, which was made for colour blindness, without
// its darkest end.
var cividis = []string{"#3b496c", "#575c6d", "#73706f", "#918578", "#b09b6e", "#d0b35c", "#fee838"}

func newStyles(ascii bool) *styles {
	st := &styles{Styles: paint.New(ascii), shades: []rune("·░░▒▒▓█"), ascii: ascii}
	for k, c := range [seriesKinds]string{paint.Grey, paint.Blue, paint.Orange, paint.Green, paint.Purple} {
		st.series[k] = paint.Colour(c)
	}
	for _, c := range cividis {
		st.heat = append(st.heat, paint.Colour(c))
	}
	if ascii {
		st.shades = []rune(".:-=+*#")
	}
	return st
}
