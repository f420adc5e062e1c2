package postgres

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Code returns the SQLSTATE of an error, or "" if the server did not report one, as after the loss of the connection.
func Code(err error) string {
	if reported, ok := errors.AsType[*pgconn.PgError](err); ok {
		return reported.Code
	}
	return ""
}

// IsData reports whether the server has refused a statement for the values in it: it would refuse the same statement
// again, and nothing of it was executed.
func IsData(err error) bool {
	code := Code(err)
	return strings.HasPrefix(code, "22") || strings.HasPrefix(code, "23") || // data exceptions, violated constraints
		code == "54000" || code == "53400" // program limits
}

// IsConnection reports whether the connection cannot be used any longer: it is lost, or the server has ended it.
func IsConnection(err error) bool {
	code := Code(err)
	return code == "" || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P") || code == "25P03"
}
