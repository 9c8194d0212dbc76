// Package screen shows a load run while it goes on: as panels in a terminal, which the
// user controls by keys, and elsewhere as one line per second.
//
// It only reads the snapshots of a run, at most four times a second (source.go), so the
// screen does not change the figures of the run. A frame is a pure function of a snapshot,
// of the choices that keys made, and of the size of the terminal (draw.go and panel_*.go).
// It is drawn again only if one of them has changed. A finished run is replayed from the
// seconds of its result (replay.go).
//
// What may go wrong: a snapshot may hold any text of a scenario, so names and messages go
// through term.Clean before they are drawn. Start reading at model.Update.
package screen
