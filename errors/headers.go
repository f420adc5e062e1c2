package errors

import (
	"fmt"
	"net/http"
	"strings"
)

// The headers that ask for a receipt, or for the response of an earlier request, and that say in the response what became of that.
const (
	ReceiptHeader = "X-Acs-Receipt"
	ReplayHeader  = "X-Acs-Replay"
)

// AsksForReceipt reports whether the header of a request asks for a receipt.
func AsksForReceipt(h http.Header) (bool, error) {
	values := h[ReceiptHeader]
	if len(values) == 0 {
		return false, nil
	}
	value := strings.Join(values, ", ")
	switch strings.ToLower(value) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	default:
		return false, InvalidField(ReceiptHeader, fmt.Sprintf("%s: got %q; expected true or false", ReceiptHeader, Clip(value)))
	}
}

// RefuseReceipt returns an error if the header of a request asks for a receipt, which saying explains that it cannot get.
func RefuseReceipt(h http.Header, saying string) error {
	asked, err := AsksForReceipt(h)
	return refuseHeader(ReceiptHeader, asked, err, saying)
}

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

// RefuseReplay returns an error if the header of a request asks for an earlier response, which saying explains that it cannot have.
func RefuseReplay(h http.Header, saying string) error {
	asked, _, err := AsksForReplay(h)
	return refuseHeader(ReplayHeader, asked, err, saying)
}

func refuseHeader(name string, asked bool, err error, saying string) error {
	if err == nil && asked {
		err = InvalidField(name, name+": "+saying+"; leave the header out")
	}
	return err
}

// NotRepeatable returns the error for a request that asks for an earlier response, and is not meant to have the same one twice.
func NotRepeatable() error {
	return InvalidField(ReplayHeader, ReplayHeader+": only a response that is meant to be repeatable can be replayed, and this request "+
		"samples: send temperature: 0 or a seed, or score a prompt (prompt_logprobs, or echo with logprobs) with max_tokens: 1")
}

// NoSuchReceipt returns the error for a receipt that does not exist, or that another key has made.
func NoSuchReceipt(leafHash string) error {
	return refuse(NotFound, "leaf_hash",
		"no receipt %q of this key; the path is /receipts/ and the 64 hexadecimal digits of X-Acs-Receipt", Clip(leafHash))
}
