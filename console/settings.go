package console

// ConfigValue is a key of the configuration, for display. Secrets are masked.
type ConfigValue struct {
	Key     string
	Value   string // empty if nothing is set
	Default string // only if Changed; empty if there is none
	Changed bool   // it differs from the default
	Pending bool   // a reload has changed it, and it needs a restart
}

// settingsPage is the data of the page of the configuration.
type settingsPage struct {
	Changed []ConfigValue
	Default []ConfigValue
	Pending bool // one of them needs a restart
}

// settingsPage shows administrators the configuration in force.
func (c *Console) settingsPage(r *request) error {
	var page settingsPage
	for _, v := range c.settings.Load().Configuration {
		page.Pending = page.Pending || v.Pending
		if v.Changed || v.Pending {
			page.Changed = append(page.Changed, v)
		} else {
			page.Default = append(page.Default, v)
		}
	}
	return c.render(r, "admin-settings", "Settings", page)
}
