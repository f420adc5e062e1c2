package fleet

import (
	"errors"
	"strings"

	apierr "basegate/errors"
)

// How the reasons of failed boots begin.
const (
	launchFailed = "launch: "
	wakeFailed   = "wake: "
	bootTooLong  = "it did not answer within "
	listsOthers  = "/v1/models lists "
	servesOther  = "it serves "
)

// publicReasons say to clients why a boot has failed, by how its reason begins: the rest may name what the operator runs, and gateways
// exchange it as text.
var publicReasons = []struct{ prefix, text string }{
	{launchFailed, "its start command failed"},
	{wakeFailed, "it could not be woken"},
	{bootTooLong, "it was not ready within its boot timeout"},
	{listsOthers, "its server serves another model"},
	{servesOther, "its server serves another model"},
}

// publicReason returns why the boot has failed, for a client; empty if that is unknown.
func (e *BootFailedError) publicReason() string {
	for _, r := range publicReasons {
		if strings.HasPrefix(e.Reason, r.prefix) {
			return r.text
		}
	}
	return ""
}

// APIError converts an error of EnsureServable, AwaitBoot or Acquire to the API error for the client. It returns other
// errors unchanged.
func (m *Model) APIError(err error) error {
	if booting, ok := errors.AsType[*BootingError](err); ok {
		return apierr.Booting(m.ID(), booting.RetryIn, booting.Elapsed, booting.Estimate)
	}
	if failed, ok := errors.AsType[*BootFailedError](err); ok {
		return apierr.BootFailed(m.ID(), failed.publicReason(), failed.RetryIn, err)
	}
	if open, ok := errors.AsType[*BreakerOpenError](err); ok {
		return apierr.BreakerOpen(m.ID(), open.RetryIn)
	}
	return err
}
