package clustermodel

import (
	"fmt"
	"strings"
)

// Describe returns what an action does, in words.
func (l *Ledger) Describe(before *State, a Action, after *State) string {
	g, r := a.A, a.A
	switch a.Kind {
	case sendCall:
		return fmt.Sprintf("gateway %d sends a call: %s", g, operations(&after.Gateways[g].Call))
	case beginCall:
		return fmt.Sprintf("PostgreSQL begins the call of gateway %d: %s", g, outcome(&after.Gateways[g].Call))
	case commitCall:
		return fmt.Sprintf("PostgreSQL commits the call of gateway %d: %s%s", g, results(after.Gateways[g].Call.Reply), l.granted(before, after))
	case beginLate:
		text := "it is refused, or its reply is dropped"
		if after.Late[g].Phase == begun {
			text = "it is executed"
		}
		return fmt.Sprintf("PostgreSQL begins the late copy of a call of gateway %d (%s): %s", g, operations(&before.Late[g]), text)
	case commitLate:
		return fmt.Sprintf("PostgreSQL commits the late copy of a call of gateway %d (%s)%s", g, operations(&before.Late[g]), l.granted(before, after))
	case receive:
		return fmt.Sprintf("gateway %d receives the reply: %s", g, received(&before.Gateways[g].Call))
	case resend:
		how := "the same call again"
		if l.breaks(ResendSameCall) {
			how = "the operations as a new call"
		}
		return fmt.Sprintf("gateway %d does not know the outcome, and sends %s: %s", g, how, operations(&after.Gateways[g].Call))
	case reapGateway:
		return fmt.Sprintf("gateway %d is given up and reaped; its epoch is %d%s", g, after.DB.Epoch[g], l.granted(before, after))
	case rejoin:
		return fmt.Sprintf("gateway %d joins again with epoch %d", g, after.Gateways[g].Epoch)
	case pauseKey, raiseCap:
		return words[a.Kind] + l.granted(before, after)
	case arrive, dispatch, deliver, answer1, answer2, endResponse, noticeLeave, leaveClient, timeOut:
		return fmt.Sprintf(words[a.Kind], r, l.Requests[r].Gateway)
	}
	if strings.Contains(words[a.Kind], "%d") {
		return fmt.Sprintf(words[a.Kind], g)
	}
	return words[a.Kind]
}

// words hold the actions that are described without the states. Those of requests have the request and its gateway.
var words = [...]string{
	arrive:      "request %d arrives at gateway %d",
	dispatch:    "request %d is sent to a backend by gateway %d",
	deliver:     "the client of request %d receives one token from gateway %d",
	answer1:     "the response to request %d has come to gateway %d whole, with one token",
	answer2:     "the response to request %d has come to gateway %d whole, with two tokens",
	endResponse: "the client of request %d receives the last byte from gateway %d",
	noticeLeave: "that the client of request %d has disconnected is noticed by gateway %d",
	leaveClient: "the client of request %d disconnects from gateway %d",
	timeOut:     "request %d has been without the database for 60 s: gateway %d ends it with an error",

	heartbeat:        "the heartbeat of gateway %d is answered with fenced: it ends all that it has begun",
	crash:            "gateway %d is killed",
	stopProcess:      "gateway %d is stopped (SIGSTOP)",
	continueProcess:  "gateway %d runs again (SIGCONT)",
	cut:              "gateway %d is cut off from PostgreSQL",
	heal:             "gateway %d can reach PostgreSQL again",
	loseConnection:   "the connection of the call of gateway %d is lost",
	loseRequest:      "the call of gateway %d is lost with its connection and never arrives",
	abortCall:        "PostgreSQL aborts the call of gateway %d (40001, 40P01 or a timeout)",
	refuseCall:       "PostgreSQL refuses a value in the call of gateway %d, and rolls it back",
	loseNotification: "a notification to gateway %d is lost",
	databaseDown:     "PostgreSQL stops",
	databaseUp:       "PostgreSQL runs again",
	pauseKey:         "an administrator pauses key 0",
	raiseCap:         "an administrator raises the cap",
	midnight:         "a new day begins",
}

// operations lists the operations of a call.
func operations(c *Call) string {
	names := [...]string{admitOp: "admit %d", settleOp: "settle %d", checkpointOp: "checkpoint %d", cancelOp: "cancel %d"}
	var all []string
	for r, op := range c.Ops {
		switch op.Kind {
		case noOp:
			continue
		case settleOp, checkpointOp:
			all = append(all, fmt.Sprintf(names[op.Kind]+" with %d tokens", r, op.Tokens))
		case admitOp, cancelOp:
			all = append(all, fmt.Sprintf(names[op.Kind], r))
		}
	}
	switch {
	case all == nil:
		return "poll"
	case c.Skip:
		return "nothing, in place of " + strings.Join(all, ", ")
	}
	return strings.Join(all, ", ")
}

// outcome describes where a call is after its beginning.
func outcome(c *Call) string {
	switch {
	case c.Phase == begun:
		return "fence and lane are passed"
	case c.Fence:
		return "fenced"
	}
	return "the lane's stored reply is returned"
}

func received(c *Call) string {
	if c.Fence {
		return "fenced, so it ends all that it has begun"
	}
	return results(c.Reply)
}

// results lists the results in a reply.
func results(reply Reply) string {
	names := [...]string{
		waits: "%d waits", grants1: "%d is granted one token", grants2: "%d is granted two tokens", refuses: "%d is refused",
		done: "%d is done", absent: "%d has no row in flight",
	}
	var all []string
	for r, result := range reply {
		if result != noOutcome {
			all = append(all, fmt.Sprintf(names[result], r))
		}
	}
	if all == nil {
		return "nothing to report"
	}
	return strings.Join(all, ", ")
}

// granted lists the waiters that an action decided for their gateways.
func (l *Ledger) granted(before, after *State) string {
	var b strings.Builder
	for r := range l.Requests {
		was, is := before.DB.Rows[r].Waiter, after.DB.Rows[r].Waiter
		if was == undecided && is == granted {
			fmt.Fprintf(&b, "; request %d is granted", r)
		}
		if was == undecided && is == refused {
			fmt.Fprintf(&b, "; request %d is refused", r)
		}
	}
	return b.String()
}
