package postgres

import (
	"context"
	"errors"
	"io"
	"net"
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

// IsConnection reports whether the connection cannot be used any longer: it is lost, the server has ended it, or the server
// cannot be written.
func IsConnection(err error) bool {
	code := Code(err)
	return code == "" || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P") || code == "25P03" || code == readOnlyTransaction
}

// IsLock reports whether a statement has waited too long for a lock, or was chosen to end a deadlock.
func IsLock(err error) bool { return Code(err) == "55P03" || Code(err) == "40P01" }

// MayPass reports whether an error of Open may pass by itself: nothing answers, or the server is starting, stopping, in
// recovery, read-only, or has too many clients.
func MayPass(err error) bool {
	code := Code(err)
	switch {
	case errors.Is(err, ErrStandby) || errors.Is(err, ErrReadOnly) || strings.HasPrefix(code, "57P") || code == "53300":
		return true
	case strings.HasPrefix(code, "08"): // also what PgBouncer reports while it cannot connect
		return !isStartupParameter(err)
	case code != "" || isCertificate(err):
		return false
	}
	if _, lookup := errors.AsType[*net.DNSError](err); lookup {
		return true
	}
	_, network := errors.AsType[*net.OpError](err)
	return network || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// isStartupParameter reports whether a pooler has refused a parameter of the startup message.
func isStartupParameter(err error) bool {
	return Code(err) == "08P01" && strings.Contains(err.Error(), "startup parameter")
}

// isCertificate reports whether the connection has failed for a certificate, of the server or of the client.
func isCertificate(err error) bool {
	return strings.Contains(err.Error(), "x509") || strings.Contains(err.Error(), "tls:")
}

// readOnlyTransaction is the SQLSTATE of a write to a server that cannot be written.
const readOnlyTransaction = "25006"
