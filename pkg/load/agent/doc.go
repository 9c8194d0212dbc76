// Package agent sends the load of one run from several machines. An agent (Server) waits
// for a controller and runs one segment of its scenario. The controller (Fleet) implements
// load.Remote for an ordinary run: it starts the agents together and passes their reports to
// the run. So thresholds, screen, ledger, verdict and result cover all agents.
//
//	GET  /v1/agent       who the agent is, and its clock
//	POST /v1/runs        a Start; the answer is a stream of Events, one JSON object a line
//	PUT  /v1/runs/{id}   Orders: when a phase begins, the rate, the token, stop
//
// An agent does one run at a time. Both sides send something every second. An agent that
// receives nothing for 3 s, or loses the connection, stops sending, so load never continues
// without its controller. A controller that receives nothing for 3 s counts the agent as lost
// and continues with the others.
//
// The controller compares each agent's clock with its own before the run, and tells each agent
// the start in the agent's own clock. So a time since the start is the same moment on every
// machine.
//
// Start reading at protocol.go. Server.start is the agent's side of a run, link.follow the
// controller's.
package agent
