package ratelimit

import "net/netip"

// Prefix lengths of the networks that Network returns.
const (
	prefixIPv4 = 24
	prefixIPv6 = 56 // a provider gives a customer up to this many addresses
)

// Network returns the network of a client's address, as the key of a limit for clients that are not signed in: one client often has
// all its addresses. A text that is not an address is returned as it is.
func Network(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	a = a.Unmap().WithZone("")
	bits := prefixIPv6
	if a.Is4() {
		bits = prefixIPv4
	}
	network, err := a.Prefix(bits)
	if err != nil {
		return address
	}
	return network.String()
}
