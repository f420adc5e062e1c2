// Package consistency checks a database for inconsistencies and repairs them: counters of the ledger that differ from the
// sums of its rows, requests in flight of gateways that have ended, and files that differ from their objects.
//
// The check may run while gateways serve; it promises to name only what is wrong at one moment. It changes nothing without
// Repair, which reports what it did. Sums of usage pages belong to package usage.
package consistency

// Problem is one inconsistency.
type Problem struct {
	Part string // of the database: counters, owners, leases, caps, requests or files
	Text string
	Note bool // it is possible, and an operator may want to know it
}

// String returns the problem as one line.
func (p Problem) String() string { return p.Part + ": " + p.Text }
