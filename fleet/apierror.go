package fleet

import (
	"errors"

	apierr "basegate/errors"
)

// APIError converts an error of EnsureServable, AwaitBoot or Acquire to the API error for the client. It returns other
// errors unchanged.
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
		return apierr.BootFailed(m.ID(), failed.RetryIn, err)
	case errors.As(err, &open):
		return apierr.BreakerOpen(m.ID(), open.RetryIn)
	default:
		return err
	}
}
