package gateway

import (
	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/console"
	"basegate/proxy"
)

// Either ledger serves the proxy and the console.
var (
	_ proxy.Ledger   = (*budget.Ledger)(nil)
	_ console.Ledger = (*budget.Ledger)(nil)
	_ proxy.Ledger   = (*cluster.Ledger)(nil)
	_ console.Ledger = (*cluster.Ledger)(nil)
)
