package errors

import (
	"fmt"
	"net/http"
	"strings"
)

// ReplayHeader is the header that asks for the response of an earlier request, and that says what became of that.
const ReplayHeader = "X-Acs-Replay"

// AsksForReplay reports whether the header of a request asks for the response of an earlier one, and whether it asks for a new one
// in its place.
func AsksForReplay(h http.Header) (asked, refresh bool, err error) {
	value := strings.Join(h[ReplayHeader], ", ")
	switch strings.ToLower(value) {
	case "true":
		return true, false, nil
	case "refresh":
		return true, true, nil
	case "false", "":
		return false, false, nil
	default:
		return false, false, InvalidField(ReplayHeader, fmt.Sprintf("%s: got %q; expected true or refresh", ReplayHeader, Clip(value)))
	}
}

// ReplayOff returns the error for a request that asks for an earlier response where none are kept.
func ReplayOff() error {
	return InvalidField(ReplayHeader, ReplayHeader+": responses are not kept on this gateway (replay.enabled); leave the header out")
}

// RefuseReplay returns an error if the header of a request asks for an earlier response, which saying explains that it cannot have.
func RefuseReplay(h http.Header, saying string) error {
	asked, _, err := AsksForReplay(h)
	if err == nil && asked {
		err = InvalidField(ReplayHeader, ReplayHeader+": "+saying+"; leave the header out")
	}
	return err
}

// NotRepeatable returns the error for a request that asks for an earlier response, and is not meant to have the same one twice.
func NotRepeatable() error {
	return InvalidField(ReplayHeader, ReplayHeader+": only a response that is meant to be repeatable can be replayed, and this request "+
		"samples: send temperature: 0 or a seed, or score a prompt (prompt_logprobs, or echo with logprobs) with max_tokens: 1")
}
