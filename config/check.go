package config

import (
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// check finds what single values cannot tell: names that are given twice, and values that contradict each other.

func (c *Config) check(v value) {
	server := v.child("server")
	if (c.Server.TLS.Cert == "") != (c.Server.TLS.Key == "") {
		server.child("tls").complain("cert and key go together: give both, or neither")
	}
	if c.Server.Listen == c.Server.AdminListen && !strings.HasSuffix(c.Server.Listen, ":0") {
		server.child("admin_listen").complain("want an address other than server.listen's, got %s for both", quoted(c.Server.Listen))
	}
	first := map[string]int{}
	for i, m := range c.Models {
		id := v.child("models").item(i).child("id")
		if before, taken := first[m.ID]; taken && m.ID != "" {
			id.complain("two models of one id: %s is models[%d] already", quoted(m.ID), before)
			continue
		}
		first[m.ID] = i
	}
}

func (m *Model) check(v value) {
	first := map[string]int{}
	for i, b := range m.Backends {
		name := v.child("backends").item(i).child("name")
		if before, taken := first[b.Name]; taken && b.Name != "" {
			name.complain("two backends of one name: %s is backends[%d] already", quoted(b.Name), before)
			continue
		}
		first[b.Name] = i
	}
	if len(m.WarmWindows) > 0 && !m.canBeWarmed() {
		v.child("warm_windows").warn("no backend of this model has launch or sleep, so nothing can be kept warm")
	}
}

func (m *Model) canBeWarmed() bool {
	for _, b := range m.Backends {
		if b.Launch != nil || b.Sleep != nil {
			return true
		}
	}
	return false
}

func (l *Launch) check(v value) {
	for _, name := range []string{"start", "stop"} {
		program, isText := v.child(name).item(0).node.(*ast.StringNode)
		if isText && program.Value == "" {
			v.child(name).complain("want a program first, got an empty text")
		}
	}
	if l.BootTimeout < l.BootEstimate {
		v.child("boot_timeout").warn("a boot is given up (%s) before it is expected to be done (%s)", l.BootTimeout, l.BootEstimate)
	}
}
