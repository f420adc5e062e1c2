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
	detach := context.AfterFunc(lost, func() { cancel(errLost) })
	x.r = original.WithContext(ctx)
	return func() {
		detach()
		x.r = original // before cancel, which does not mean that the client has disconnected
		cancel(nil)
	}
}
