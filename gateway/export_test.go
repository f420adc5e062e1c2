package gateway

import "basegate/database"

// Database returns the gateway's database.
func (g *Gateway) Database() *database.DB { return g.db }
