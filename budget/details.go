package budget

import (
	"context"

	"basegate/database"
)

// InsertReceipt inserts the entry of an Outcome's Receipt into the receipt log, once: a settlement is sent again after a failover.
// Only a storage failure can fail it.
func InsertReceipt(ctx context.Context, tx database.Execer, key string, receipt []byte) error {
	const text = `
		INSERT INTO receipts (leaf_hash, nonce, entry, key_id) VALUES ($1, $2, $3, $4) ON CONFLICT (leaf_hash) DO NOTHING`
	return database.Exec(ctx, tx, text, receipt[:32], receipt[32:64], receipt[64:], key)
}
