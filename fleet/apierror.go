package fleet

import (
	"errors"

	apierr "basegate/errors"
)

// APIError converts an error of EnsureServable, AwaitBoot or Acquire to the API error for the client. It returns other
// errors unchanged.
func (m *Model) APIError(err error) error {
	if booting, ok := errors.AsType[*BootingError](err); ok {
		return apierr.Booting(m.ID(), booting.RetryIn, booting.Elapsed, booting.Estimate)
	}
	if failed, ok := errors.AsType[*BootFailedError](err); ok {
		return apierr.BootFailed(m.ID(), failed.RetryIn, err)
	}
	if open, ok := errors.AsType[*BreakerOpenError](err); ok {
		return apierr.BreakerOpen(m.ID(), open.RetryIn)
	}
	return err
}
