// Package screen shows a load run during the run. In a terminal it shows panels, which the
// user controls by keys. Without a terminal it writes one line per second.
//
// It only reads the snapshots of a run, at most four times a second (source.go). So the screen does
// not change the figures of the run. A frame is a pure function of a snapshot, of the settings that
// keys have changed, and of the size of the terminal (draw.go and panel_*.go). A frame is drawn
// again only if one of the three has changed. A replay shows a finished run again from the seconds
// in its result (replay.go).
//
// What may go wrong: a snapshot may contain any text of a scenario. So names and messages go
// through term.Clean before they are drawn. Start reading at model.Update.
package screen
