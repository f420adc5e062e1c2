package errors

import (
	"fmt"
	"net/http"
	"strings"
)

// NoSuchReceipt returns the error for a receipt that does not exist, or that another key has made.
func NoSuchReceipt(leafHash string) error {
	return refuse(NotFound, "leaf_hash",
		"no receipt %q of this key; the path is /receipts/ and the 64 hexadecimal digits of X-Acs-Receipt", Clip(leafHash))
}

// AsksForReceipt reports whether the header of a request asks for a receipt.
func AsksForReceipt(h http.Header) (bool, error) {
	values := h[ReceiptHeader]
	if len(values) == 0 {
		return false, nil
	}
	value := strings.Join(values, ", ")
	switch {
	case strings.EqualFold(value, "true"):
		return true, nil
	case strings.EqualFold(value, "false"):
		return false, nil
	default:
		return false, InvalidField(ReceiptHeader, fmt.Sprintf("%s: got %q; expected true or false", ReceiptHeader, Clip(value)))
	}
}

// RefuseReceipt returns an error if the header of a request asks for a receipt, which saying explains that it cannot get.
func RefuseReceipt(h http.Header, saying string) error {
	asked, err := AsksForReceipt(h)
	if err == nil && asked {
		err = InvalidField(ReceiptHeader, ReceiptHeader+": "+saying+"; leave the header out")
	}
	return err
}

// ReceiptsOff returns the error for a request that asks for a receipt where there are none.
func ReceiptsOff() error {
	return InvalidField(ReceiptHeader, ReceiptHeader+": receipts are not enabled on this gateway; leave the header out")
}

// ReceiptHeader is the header that asks for a receipt, and that brings it.
const ReceiptHeader = "X-Acs-Receipt"
