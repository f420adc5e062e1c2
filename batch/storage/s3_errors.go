package storage

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7"
)

// BucketError is an error of the S3 server that does not pass by itself.
type BucketError struct {
	Code   string // of S3
	Reason string // and what to do
}

// Error implements error.
func (e *BucketError) Error() string { return e.Reason + " (" + e.Code + ")" }

// advice is what an operator can do about an error of the S3 server.
var advice = map[string]string{
	"NoSuchBucket": "the bucket does not exist: create it, or correct files.url",
	"AccessDenied": "access is denied: allow the credentials s3:ListBucket of the bucket, and s3:GetObject, s3:PutObject and " +
		"s3:DeleteObject of its objects under the prefix",
	"InvalidAccessKeyId":           "the server does not know the access key: correct AWS_ACCESS_KEY_ID",
	"SignatureDoesNotMatch":        "the server refuses the signature: correct AWS_SECRET_ACCESS_KEY",
	"ExpiredToken":                 "the credentials have expired: renew AWS_SESSION_TOKEN, and restart",
	"InvalidToken":                 "the server does not know the session token: correct AWS_SESSION_TOKEN, or unset it for a lasting key",
	"RequestTimeTooSkewed":         "the clocks of this machine and of the server differ by more than 15 minutes: synchronize them, for example with chrony",
	"AuthorizationHeaderMalformed": "the bucket is in another region: correct region in files.url",
	"PermanentRedirect":            "the bucket is in another region: correct region and endpoint in files.url",
	"AllAccessDisabled":            "the server has disabled the bucket: see its console",
	"InvalidBucketName":            "the server refuses the name of the bucket: correct files.url",
}

// sameAdvice are codes with the meaning of another one.
var sameAdvice = map[string]string{
	"InvalidRegion": "AuthorizationHeaderMalformed", "IllegalLocationConstraintException": "AuthorizationHeaderMalformed",
	"TemporaryRedirect": "PermanentRedirect", "ExpiredTokenException": "ExpiredToken", "AccountProblem": "AccessDenied",
	"XAdminUserNotFound": "InvalidAccessKeyId", // of the Versity S3 gateway
}

// explain returns an error without the name of an object, and with what to do. An error of the network is without the
// request's URL, which holds the name.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if r, ok := errors.AsType[minio.ErrorResponse](err); ok {
		code := cmp.Or(sameAdvice[r.Code], r.Code)
		switch reason := advice[code]; {
		case reason != "" && r.Region != "" && code == "AuthorizationHeaderMalformed":
			return &BucketError{r.Code, reason + " to " + r.Region}
		case reason != "":
			return &BucketError{r.Code, reason}
		default:
			return &responseError{r.Code, r.StatusCode}
		}
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if c, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &BucketError{"TLS", fmt.Sprintf("the server's certificate is not trusted: %v; add its authority to the system's, or set SSL_CERT_FILE", c.Err)}
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return &BucketError{"TLS", "the server does not speak TLS: correct the endpoint in files.url"}
	}
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("the S3 server cannot be reached: %w", err)
	}
	return err
}

// responseError is any other error of the S3 server. Its text is ours: the server's may quote the name of an object.
type responseError struct {
	code   string
	status int
}

// Error implements error.
func (e *responseError) Error() string {
	code := e.code
	if code == "" || strings.Contains(code, " ") { // the body was no error of S3
		code = http.StatusText(e.status)
	}
	return fmt.Sprintf("the S3 server responded %d %s", e.status, code)
}

// isBucketFull reports whether the S3 server has no room.
func isBucketFull(err error) bool {
	r, ok := errors.AsType[*responseError](err)
	return ok && (r.status == http.StatusInsufficientStorage ||
		slices.Contains([]string{"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}, r.code))
}

// isConflict reports whether the S3 server has refused a request because of another one at the same time, and may take it
// later. The Versity S3 gateway does so while it removes a neighbouring folder that has become empty.
func isConflict(err error) bool {
	r, ok := errors.AsType[*responseError](err)
	return ok && r.status == http.StatusConflict
}

// isMissing reports whether an object does not exist.
func isMissing(err error) bool {
	r, ok := errors.AsType[minio.ErrorResponse](err)
	return ok && r.Code == "NoSuchKey"
}
