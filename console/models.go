package console

import "context"

// Warmer starts a model that is not running. It returns when the start has begun, not when it is over.
type Warmer func(ctx context.Context, model string) error
