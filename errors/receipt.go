package errors

import "fmt"

// NoSuchReceipt returns the error for a receipt that does not exist, or that another key has made.
func NoSuchReceipt(leafHash string) error {
	return &Error{Code: NotFound, Param: "leaf_hash", Message: valid(fmt.Sprintf(
		"no receipt %q of this key; the path is /receipts/ and the 64 hexadecimal digits of X-Acs-Receipt", Clip(leafHash)))}
}

// ReceiptsOff returns the error for a request that asks for a receipt where there are none.
func ReceiptsOff() error {
	return InvalidField(ReceiptHeader, ReceiptHeader+": receipts are not enabled on this gateway; leave the header out")
}

// InvalidReceiptHeader returns the error for a value of X-Acs-Receipt that is neither true nor false.
func InvalidReceiptHeader(got string) error {
	return InvalidField(ReceiptHeader, valid(fmt.Sprintf("%s: got %q; expected true or false", ReceiptHeader, Clip(got))))
}

// ReceiptHeader is the header that asks for a receipt, and that brings it.
const ReceiptHeader = "X-Acs-Receipt"
