package proxy

import (
	"context"
	"errors"
)

// errLost is the cause of the end of a request whose reservation was lost.
var errLost = errors.New("the ledger is out of reach, or another gateway has ended this one's requests")

// endWhenLost cancels the request if its reservation is lost, until the function that it returns is called.
func (x *exchange) endWhenLost() (stop func()) {
	lost := x.reservation.Lost()
	if lost == nil {
		return func() {}
	}
	original := x.r
	ctx, cancel := context.WithCancelCause(original.Context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-lost:
			cancel(errLost)
		case <-ctx.Done():
		}
	}()
	x.r = original.WithContext(ctx)
	return func() {
		defer func() { <-watched }()
		x.r = original // before cancel, which does not mean that the client has disconnected
		cancel(nil)
	}
}
