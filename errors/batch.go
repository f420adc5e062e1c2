package errors

import (
	"net/http"
	"time"
)

// NoSuchObject returns the error for a file or a batch that does not exist, or belongs to another account. kind is its
// noun.
func NoSuchObject(kind, id string) error {
	return refuse(NotFound, "id", "no %s %q in this account", kind, Clip(id))
}

// FileOfBatch returns the error for the deletion of a file that a batch still needs.
func FileOfBatch(file, batch string) error {
	return refuse(FileInUse, "id",
		"%s belongs to %s, which has not ended; cancel the batch or wait for its end, then delete the file", file, batch)
}

// BatchHasEnded returns the error for the cancellation of a batch that has ended.
func BatchHasEnded(batch, status string) error {
	return refuse(BatchNotCancellable, "id", "%s is %s, so there is nothing to cancel", batch, status)
}

// OtherBody returns the error for an Idempotency-Key that came with another body before.
func OtherBody() error {
	return refuse(IdempotencyConflict, "",
		"this Idempotency-Key came with another body within the last 24 hours; use a new key for a new request")
}

// UnfinishedBatches returns the error for a new batch of an account that has as many unfinished ones as it may.
func UnfinishedBatches(limit int) error {
	return refuse(TooManyBatches, "",
		"this account has %d batches that have not ended, as many as it may; wait for the end of one or cancel one", limit).
		with("limit", limit)
}

// FileTooLarge returns the error for an upload over the limit of one file, in bytes.
func FileTooLarge(limit int64) error {
	return refuse(RequestTooLarge, "file", "the file is larger than the %d bytes allowed here; split it", limit).
		with("limit_bytes", limit)
}

// StorageQuota returns the error for an upload that exceeds what an account may store, in bytes.
func StorageQuota(limit, used int64) error {
	return refuse(StorageQuotaExceeded, "file",
		"the files of this account take %d of %d bytes, so this one does not fit; delete some with DELETE /v1/files/{id}", used, limit).
		with("limit_bytes", limit).with("used_bytes", used)
}

// TooManyFiles returns the error for an upload of an account that has as many files as it may, with the bytes of those.
func TooManyFiles(limit int, limitBytes, usedBytes int64) error {
	return refuse(StorageQuotaExceeded, "file",
		"this account has %d files, as many as it may; delete some with DELETE /v1/files/{id}", limit).
		with("limit_bytes", limitBytes).with("used_bytes", usedBytes).with("limit", limit)
}

// RangeOutside returns the error for a Range header that names no bytes of a file of that size. The contract has no code for
// it.
func RangeOutside(size int64) error {
	e := refuse(InvalidRequest, "",
		"the Range header names no bytes of this file, which has %d; expected a range such as bytes=0-99, or no Range", size)
	e.status = http.StatusRequestedRangeNotSatisfiable
	return e
}

// NoMatch returns the error for an If-Match header that names another content than the file's. The contract has no code for it.
func NoMatch() error {
	e := refuse(InvalidRequest, "", "the content of this file is not what the If-Match header names; read it from its beginning, without If-Match")
	e.status = http.StatusPreconditionFailed
	return e
}

// storageRetry is when a client should retry an access to files that failed.
const storageRetry = 10 * time.Second

// Storage returns the error for files that cannot be read or written at the moment.
func Storage(cause error) error {
	return refuse(StorageUnavailable, "", "the files cannot be read or written at the moment; nothing was stored or changed; try again").
		after(waitSeconds(storageRetry)).because(cause)
}
