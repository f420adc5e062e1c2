package fleet

import (
	"fmt"
	"net/url"
	"strings"
)

// address is where a backend's server is. It is replaced as a whole, and its URLs must not be modified.
type address struct {
	launched                string // as launch.start has printed it; empty: the configured one
	base, completions, chat *url.URL
}

func newAddress(launched string, at url.URL) *address {
	at.Path += "/" // of an empty path, JoinPath would make a relative one
	return &address{launched, &at, at.JoinPath("v1/completions"), at.JoinPath("v1/chat/completions")}
}

// addressPrefix begins the line of launch.start with the address of the server that it has started.
const addressPrefix = "url="

// parseLaunched returns the address in the last line that launch.start has printed; empty if there is none.
func parseLaunched(line string) (launched string, err error) {
	text, found := strings.CutPrefix(line, addressPrefix)
	if !found {
		return "", nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("the last line is %q, want %shttp://HOST:PORT", line, addressPrefix)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u.String(), nil
}

// moveTo sets the address that launch.start has printed; empty: the configured one.
func (b *Backend) moveTo(launched string) {
	if now := b.address.Load(); now != nil && now.launched == launched {
		return
	}
	at, err := url.Parse(launched)
	if err != nil || launched == "" {
		launched, at = "", b.cfg().URL
	}
	b.address.Store(newAddress(launched, *at))
}
