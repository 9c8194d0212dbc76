// Package agent sends the load of one run from several machines. An agent (Server) waits
// for a controller and runs one segment of its scenario. The controller (Fleet) is the
// load.Remote of an ordinary run: it starts the agents together and gives the run what
// they report, so that thresholds, screen, ledger, verdict and result are of all of them.
//
//	GET  /v1/agent       who the agent is, and its clock
//	POST /v1/runs        a Start; the answer is a stream of Events, one JSON object a line
//	PUT  /v1/runs/{id}   Orders: when a phase begins, the rate, the token, stop
//
// An agent does one run at a time. Both sides say something every second. An agent that
// hears nothing for 3 s, or loses the connection, stops sending, so load never outlives
// its controller. A controller that hears nothing for 3 s counts the agent as lost and
// goes on with the others.
//
// Times since the run's start mean the same on every machine, for the start is one
// moment: the controller measures each agent's clock before the run, and names the
// moment in that clock.
package agent
