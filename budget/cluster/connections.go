package cluster

// Connections is how many connections a Ledger opens with the default Settings, besides those of its DB's pool: its lanes, one
// for heartbeats and one that listens.
const Connections = defaultLanes + 2

// defaultLanes is the Lanes that 0 means.
const defaultLanes = 3
