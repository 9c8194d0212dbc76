// Package agent sends the load of one run from several machines. An agent (Server) waits for a
// controller and runs one segment of the controller's scenario. The controller is an ordinary
// run with a Fleet, which implements load.Remote. The Fleet starts the agents at the same
// moment and adds their frames to the run. So thresholds, screen, ledger, verdict and result
// are about all agents together.
//
//	GET  /v1/agent       describes the agent and returns the time of its clock
//	POST /v1/runs        a Start; the answer is a stream of Events, one JSON object a line
//	PUT  /v1/runs/{id}   Orders: when a phase begins, the rate, the token, stop
//
// An agent runs one segment at a time. Both sides send something every second. If an agent
// receives nothing for 3 s, or loses the connection, it stops sending. So load never continues
// without its controller. If the controller receives nothing from an agent for 3 s, it counts
// the agent as lost and continues with the other agents.
//
// Before the run the controller compares each agent's clock with its own clock. It sends each agent
// the start of the run, converted to that agent's clock. So all machines begin at the same moment.
//
// Start reading at protocol.go. Server.start is the agent's side of a run. link.follow is the
// controller's side.
package agent
