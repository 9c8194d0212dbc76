package server

import (
	"net/http"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// conservation adds up what was accepted. It takes as long as it takes: it reads
// all that was accepted in the time that is asked for.
func (s *Server) conservation(x *exchange) error {
	if s.deps.Conservation == nil {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "audit_unavailable", Msg: "this server's roles do not include what answers this"}
	}
	q := x.query()
	ms := q.moment("since")
	if err := q.rest(); err != nil {
		return err
	}
	var since time.Time
	if ms != 0 {
		since = moment(ms)
	}
	x.deadlines(time.Time{}, time.Time{})
	rep, err := s.deps.Conservation(x.r.Context(), since)
	if err != nil {
		return err
	}
	x.deadlines(time.Time{}, time.Now().Add(s.cfg.WriteTimeout))
	return x.json(http.StatusOK, rep)
}
