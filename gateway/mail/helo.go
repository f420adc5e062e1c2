package mail

import (
	"context"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"time"
)

// resolveTimeout limits the search for the name of this machine.
const resolveTimeout = 2 * time.Second

// qualified matches names that a mail server takes for the name of a client: servers refuse those without a dot.
var qualified = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?$`)

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// helo returns what the gateway calls itself to the server (RFC 5321, 4.1.3): what is configured, or the fully qualified name of
// this machine, or else the address from which it reaches the server.
func (s *Settings) helo(ctx context.Context) string {
	if s.Helo != "" {
		return s.Helo
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	if host, err := os.Hostname(); err == nil {
		if name := qualify(ctx, host, net.DefaultResolver.LookupCNAME); name != "" {
			return name
		}
	}
	return addressLiteral(s.localAddress(ctx))
}

// qualify returns the fully qualified name of a host; empty if there is none.
func qualify(ctx context.Context, host string, lookUp func(context.Context, string) (string, error)) string {
	if name := usableName(host); name != "" {
		return name
	}
	name, err := lookUp(ctx, host)
	if err != nil {
		return ""
	}
	return usableName(name)
}

// usableName returns the name if it is fully qualified; empty if it is not, or means any machine.
func usableName(name string) string {
	name = strings.TrimSuffix(name, ".")
	if !qualified.MatchString(name) || strings.HasSuffix(name, ".localdomain") {
		return ""
	}
	return name
}

// localAddress returns the address from which this machine reaches the server; a socket of UDP has it without sending
// anything.
func (s *Settings) localAddress(ctx context.Context) netip.Addr {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", s.SMTP.Host)
	if err != nil {
		return loopback
	}
	defer conn.Close()
	local, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return loopback
	}
	return local.Addr()
}

func addressLiteral(a netip.Addr) string {
	if a = a.Unmap().WithZone(""); a.Is6() {
		return "[IPv6:" + a.String() + "]"
	}
	return "[" + a.String() + "]"
}
