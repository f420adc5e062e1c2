// Package clustermodel is a model of the protocol by which several gateways share one PostgreSQL ledger, and an explorer
// that visits every state of it which a few requests, gateways and faults can lead to. docs/cluster-protocol.md describes
// the protocol; the names here are its own. The package has no part in the gateway; only its tests run it.
//
// A Ledger is two gateways, one account with one or two keys, and up to three requests. Each action is what can happen
// between two points at which a process may fail: a call begins, commits, replies; a request is dispatched; its last byte
// is sent. Faults are crashes, stopped and cut-off processes, lost connections with calls that are executed late, and
// outages of the database. A Heartbeats is the rule by which a gateway is given up. Rules can be broken one by one, to show
// that the explorer finds what each of them prevents.
package clustermodel

// Sizes of a Ledger.
const (
	gateways    = 2
	maxRequests = 3
	maxKeys     = 2
)

// Rule is a rule of the protocol.
type Rule uint32

// The rules that can be broken.
const (
	FenceCalls        Rule = 1 << iota // a call with an old epoch changes nothing
	HoldGatewayLock                    // a call holds the gateway's advisory lock, which the reaper takes exclusively
	ReplayLane                         // the last sequence of a lane returns the stored reply
	RefuseOldSequence                  // a sequence before the last one changes nothing
	ResendSameCall                     // a call of unknown outcome is sent again with its sequence
	SkipRefused                        // the sequence of a call with a refused value is used up before the next one
	RaiseEpoch                         // the reaper raises the epoch
	DeleteReturning                    // a settlement charges only if its DELETE returns the row in flight
	CommitBeforeEnd                    // the last byte is sent after the settlement's commit
	FailOnFence                        // a fenced gateway ends its requests with an error
	LockThenRead                       // rows are read by a later statement than the one that locks the account
	QueueBehind                        // a new request is evaluated after those that wait
	FreeOnCancel                       // a cancellation releases a lease that was granted at the same moment
	GrantOnSettle                      // a settlement grants to those that wait
	GrantOnReap                        // the reaper grants to those that wait
	GrantOnChange                      // a changed cap or a paused key decides those that wait
	DropWaiters                        // the reaper deletes the waiters of its gateway
	CountReserved                      // reserved tokens count beside used ones
	NotifyGrants                       // a grant notifies the waiter's gateway
	PollGrants                         // a gateway with waiters polls
	GrantOnRollover                    // a call that begins a new window grants
	ChargeInWindow                     // a settlement counts in the window of its admission
)

// Config is the size of a Ledger and what may happen in it.
type Config struct {
	Requests []Request
	Limits   [maxKeys]uint8 // slots of each key
	Account  uint8          // slots of the account; 0 means unbounded
	Cap      uint8          // tokens of the account in a window; 0 means unbounded
	Faults   uint8          // crashes, stops, cuts, lost connections and outages together
	Leaves   uint8          // clients that disconnect
	Pause    bool           // key 0 may be paused once
	Raise    uint8          // the cap may be raised to this once
	Midnight bool           // the window may end once
	Broken   Rule           // rules that are not obeyed
	Ignore   Rule           // rules whose own check is off, to show what breaking them leads to
	Safety   bool           // only invariants are checked, not how runs end
}

// Request is a request that may arrive: at which gateway, with which key, and the tokens that it reserves if the cap leaves
// them.
type Request struct{ Gateway, Key, Demand uint8 }

// State is a state of a Ledger.
type State struct {
	DB       Database
	Gateways [gateways]Gateway
	Late     [gateways]Call // a copy of a call whose connection is lost, which the database may still execute
	Requests [maxRequests]Local
	Faults   uint8
	Leaves   uint8
	Broken   Violation
}

// Database is what PostgreSQL has committed.
type Database struct {
	Down    bool
	Epoch   [gateways]uint8
	Lane    [gateways]Lane
	Running [maxKeys]uint8 // leases of each key
	Cap     uint8
	Today   uint8    // the window by the database's clock
	Window  uint8    // of the account's counters
	Account Counters // in Window
	Past    Counters // in the window before
	Ticket  uint8    // the last one
	Paused  bool     // key 0
	Rows    [maxRequests]Row
}

// Counters are the account's tokens in a window.
type Counters struct{ Used, Reserved uint8 }

// Lane is the row of a lane.
type Lane struct {
	Seq     uint8
	Reply   Reply
	Skipped bool // the call had no operations: it used up a sequence
}

// Row is all that the tables hold of one request.
type Row struct {
	Waiter   Decision // the row in waiter; noDecision if there is none
	Ticket   uint8
	InFlight bool  // the row in inflight, with the next three fields
	Reserved uint8 // tokens
	Window   uint8
	Progress uint8 // tokens of the last checkpoint
	Ended    End   // the row in requests, with Charged and Window
	Charged  uint8
}

// Violation is what an action has noticed that no state shows afterwards.
type Violation uint8

const (
	noViolation Violation = iota
	oldEpochWrote
	admittedTwice
	chargedTwice
	overtaken
	unreserved
	sequenceGap
)

// Decision is the state of a waiter.
type Decision uint8

const (
	noDecision Decision = iota
	undecided
	granted
	refused
)

// End is how the row of a request ended.
type End uint8

const (
	notEnded End = iota
	settled
	interrupted
)

// Reply is the reply to a call: one result for each request.
type Reply [maxRequests]Outcome

// Outcome is the result of an operation, or the decision on a wait.
type Outcome uint8

const (
	noOutcome Outcome = iota
	waits
	grants1 // one token
	grants2
	refuses
	done
	absent // a settlement found no row
)

// Op is an operation of a call on one request.
type Op struct {
	Kind   OpKind
	Tokens uint8
}

// OpKind is the kind of an operation.
type OpKind uint8

const (
	noOp OpKind = iota
	admitOp
	settleOp
	checkpointOp
	cancelOp
)

// Call is a call of ledger_v1 on its way.
type Call struct {
	Phase Phase
	Epoch uint8
	Seq   uint8
	Ops   [maxRequests]Op
	Reply Reply
	Fence bool // the reply is fenced
	// Skip makes a call of no operations. Those of Ops are of the call before with the same sequence, whose value the
	// database has refused.
	Skip    bool
	Skipped bool  // the reply is that of a skip
	Seen    uint8 // with LockThenRead broken: the requests whose waiters the call's snapshot has
}

// Phase is where a call is.
type Phase uint8

const (
	noCall    Phase = iota
	sent            // on its way to the database
	begun           // past the fence and the lane, which is locked
	committed       // the reply is on its way
	lost            // the gateway does not know the outcome, and sends again
)

// Gateway is the memory of a gateway.
type Gateway struct {
	Process Process
	Cut     bool // it cannot reach the database
	Joined  bool
	Epoch   uint8
	Seq     uint8 // of the last call
	Call    Call  // the outstanding call
	Wake    bool  // a notification has arrived
}

// Process is the state of a gateway's process.
type Process uint8

const (
	running Process = iota
	stopped
	dead
)

// Local is what a gateway and a client know of a request.
type Local struct {
	Place      Place
	Client     Client
	Delivered  uint8 // tokens that the client has received
	Tokens     uint8 // granted, and then used
	Checkpoint bool  // a checkpoint is to be written
	Failed     bool  // the response ends without its last byte
}

// Place is where a request is at its gateway.
type Place uint8

const (
	absentPlace Place = iota // it has not arrived
	toAdmit
	admitting
	waiting
	leased
	atBackend
	toSettle
	settling
	toEnd // the settlement is committed: the last byte may be sent
	toCancel
	cancelling
	finished
)

// Client is what a client has seen.
type Client uint8

const (
	present Client = iota
	left
	sawAll
	sawError
)

// Ledger is the Model of the protocol.
type Ledger struct{ Config }

// hasSlot reports whether a key and its account have a free slot beside those that are held.
func (l *Ledger) hasSlot(held [maxKeys]uint8, key uint8) bool {
	return held[key] < l.Limits[key] && (l.Account == 0 || sum(held) < l.Account)
}

func sum(held [maxKeys]uint8) (n uint8) {
	for _, h := range held {
		n += h
	}
	return n
}

// breaks reports whether a rule is broken.
func (l *Ledger) breaks(r Rule) bool { return l.Broken&r != 0 }

// Initial returns the state before anything has happened.
func (l *Ledger) Initial() State {
	s := State{Faults: l.Faults, Leaves: l.Leaves}
	s.DB.Cap = l.Cap
	for g := range s.Gateways {
		s.DB.Epoch[g] = 1
		s.Gateways[g].Epoch, s.Gateways[g].Joined = 1, true
	}
	return s
}
