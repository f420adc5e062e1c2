package budget

import (
	"context"

	"basegate/database"
)

// insertReceipt inserts the receipt of a request after its row, in the same transaction. Only a storage failure can fail it.
func insertReceipt(ctx context.Context, tx database.Execer, r *row) error {
	const text = `INSERT INTO pending_receipts (request_id, key_id, receipt) VALUES ($1, $2, $3)`
	return database.Exec(ctx, tx, text, r.request.ID, r.request.KeyID, r.outcome.Receipt)
}
