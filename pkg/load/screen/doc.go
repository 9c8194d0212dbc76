// Package screen draws a load run as it goes on: in a terminal with panels and keys,
// elsewhere as a line per interval.
//
// It knows a run by its snapshots alone, which it pulls at most four times a second
// (source.go): a run does not notice whether somebody watches. A frame is a pure
// function of a snapshot, of what the keys chose, and of a size (draw.go and
// panel_*.go), and is drawn again only when one of them changed. A finished run is
// replayed from its seconds (replay.go).
package screen
