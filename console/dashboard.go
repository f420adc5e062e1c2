package console

func (c *Console) dashboard(v *visit) error {
	return c.render(v, "dashboard", "Dashboard", nil)
}
