package budget

import (
	"context"

	"basegate/budget/usage"
	"basegate/database"
)

// hasDetails reports whether the request has a row in request_details. Plain successful requests have none, so they cost
// nothing more.
func (r *row) hasDetails() bool {
	return r.outcome.Boot > 0 || len(r.outcome.Attempts) > 0 || r.request.ChainID != ""
}

// insertDetails inserts the details of a request after its row, in the same transaction. Only a storage failure, which
// fails the whole transaction, can fail the statement: the id is that of a row that was just inserted.
func insertDetails(ctx context.Context, tx database.Execer, r *row) error {
	if !r.hasDetails() {
		return nil
	}
	const text = `
		INSERT INTO request_details (request_id, boot_us, attempts) VALUES ($1, $2, $3)
		ON CONFLICT (request_id) DO NOTHING`
	return database.Exec(ctx, tx, text, r.request.ID, r.outcome.Boot.Microseconds(), usage.EncodeDetails(r.outcome.Attempts, r.request.ChainID))
}

// insertReceipt inserts the receipt of a request after its row, in the same transaction. Only a storage failure can fail it.
func insertReceipt(ctx context.Context, tx database.Execer, r *row) error {
	const text = `INSERT INTO pending_receipts (request_id, key_id, receipt) VALUES ($1, $2, $3)`
	return database.Exec(ctx, tx, text, r.request.ID, r.request.KeyID, r.outcome.Receipt)
}
