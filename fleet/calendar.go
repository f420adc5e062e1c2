package fleet

import (
	"basegate/breaker"
	"basegate/config"
)

// WarmWindows are when the configuration keeps the model warm. The slice is not to be changed.
func (m *Model) WarmWindows() []config.Window { return m.config.WarmWindows }

// RecentAttempts are what became of the last attempts at the backend, the oldest first.
func (b *Backend) RecentAttempts() []breaker.Observation { return b.breaker.Recent() }
