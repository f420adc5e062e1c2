package config

import (
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// The check methods report problems that no single value shows: duplicate names, and values that contradict each other.

func (c *Config) check(v value) {
	server := v.child("server")
	if (c.Server.TLS.Cert == "") != (c.Server.TLS.Key == "") {
		server.child("tls").errorf("cert and key go together: give both, or neither")
	}
	if c.Server.Listen == c.Server.AdminListen && !strings.HasSuffix(c.Server.Listen, ":0") {
		server.child("admin_listen").errorf("want an address other than server.listen's, got %s for both", quote(c.Server.Listen))
	}
	if c.Mail.SMTP != nil && c.Mail.From == "" {
		v.child("mail").errorf("smtp needs from, the address of the sender")
	}
	if c.Console.OIDC.Issuer != nil && c.Console.OIDC.ClientID == "" {
		v.child("console").child("oidc").errorf("issuer needs client_id, as registered at the provider")
	}
	if c.Dialects.Eternalai && !c.Receipts.Enabled {
		v.child("dialects").child("eternalai").errorf("its responses carry receipts: set receipts.enabled to true")
	}
	c.checkDatabase(v)
	c.checkModelNames(v)
}

// checkModelNames reports ids and aliases that occur twice, in one model or in two.
func (c *Config) checkModelNames(v value) {
	first := map[string]int{}
	for i, m := range c.Models {
		id := v.child("models").item(i).child("id")
		if firstIndex, duplicate := first[m.ID]; duplicate && m.ID != "" {
			id.errorf("two models of one id: %s is models[%d] already", quote(m.ID), firstIndex)
			continue
		}
		first[m.ID] = i
	}
	for i, m := range c.Models {
		for n, alias := range m.Aliases {
			if firstIndex, duplicate := first[alias]; duplicate && alias != "" {
				at := v.child("models").item(i).child("aliases").item(n)
				at.errorf("an alias that is taken: %s is an id or alias of models[%d] already", quote(alias), firstIndex)
				continue
			}
			first[alias] = i
		}
	}
}

func (m *Model) check(v value) {
	first := map[string]int{}
	for i, b := range m.Backends {
		name := v.child("backends").item(i).child("name")
		if firstIndex, duplicate := first[b.Name]; duplicate && b.Name != "" {
			name.errorf("two backends of one name: %s is backends[%d] already", quote(b.Name), firstIndex)
			continue
		}
		first[b.Name] = i
	}
	if !m.Chat && !m.Completions {
		v.child("completions").errorf("the model serves nothing: want chat: true with completions: false")
	}
	if len(m.WarmWindows) > 0 && !m.Managed() {
		v.child("warm_windows").warnf("no backend of this model has launch or sleep, so nothing can be kept warm")
	}
}

// Managed reports whether the gateway can start, stop or wake a backend of the model.
func (m *Model) Managed() bool {
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
			v.child(name).errorf("want a program first, got an empty text")
		}
	}
	if l.BootTimeout < l.BootEstimate {
		v.child("boot_timeout").warnf("a boot times out (%s) before it is expected to end (%s)", l.BootTimeout, l.BootEstimate)
	}
}
