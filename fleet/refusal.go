package fleet

import (
	"errors"
	"fmt"

	apierr "basegate/errors"
)

// APIError is the answer to who asks for the model where it cannot be had: what Servable, AwaitBoot or Acquire returned, in
// the words of the API. An error that is none of theirs stays what it is.
func (m *Model) APIError(err error) error {
	var (
		booting *BootingError
		failed  *BootFailedError
		open    *BreakerOpenError
	)
	switch {
	case errors.As(err, &booting):
		return apierr.Booting(m.ID(), booting.RetryIn, booting.Elapsed, booting.Estimate)
	case errors.As(err, &failed):
		what := fmt.Sprintf("%s could not be started (%s) and is tried again in %d seconds", m.ID(), failed.Reason, int(failed.RetryIn.Seconds())+1)
		return apierr.Unreachable(what, 0, err)
	case errors.As(err, &open):
		return apierr.BreakerOpen(m.ID(), open.RetryIn)
	default:
		return err
	}
}
