package console

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"basegate/database"
)

func (c *Console) storeFeedback(ctx context.Context, f feedback) error {
	return c.writeFeedback(ctx,
		`INSERT INTO feedback (id, time, account_id, page, request_id, message) VALUES ($1, $2, $3, $4, $5, $6)`,
		"fb_"+rand.Text(), f.Time.UnixMicro(), f.AccountID, f.Page, f.RequestID, f.Message)
}

func (c *Console) writeFeedback(ctx context.Context, text string, args ...any) error {
	err := c.DB.WriteGrouped(ctx, func(tx database.Tx) error { return database.Exec(ctx, tx, text, args...) })
	if err != nil {
		return fmt.Errorf("write feedback: %w", err)
	}
	return nil
}

const feedbackColumns = `SELECT id, time, account_id, page, request_id, message, status, reply, replied_by, replied_at FROM feedback`

// listFeedback returns the last feedback of a status, or of any if it is empty, that is not newer than a time; the
// newest first.
func (c *Console) listFeedback(ctx context.Context, status string, until time.Time, limit int) ([]feedback, error) {
	const text = feedbackColumns + ` WHERE (status = $1 OR $1 = '') AND time <= $2 ORDER BY time DESC, id DESC LIMIT $3`
	return c.queryFeedback(ctx, text, status, until.UnixMicro(), limit)
}

// ownFeedback returns the last feedback of an account, the newest first.
func (c *Console) ownFeedback(ctx context.Context, account string, limit int) ([]feedback, error) {
	return c.queryFeedback(ctx, feedbackColumns+` WHERE account_id = $1 ORDER BY time DESC, id DESC LIMIT $2`, account, limit)
}

func (c *Console) findFeedback(ctx context.Context, id string) (feedback, error) {
	found, err := c.queryFeedback(ctx, feedbackColumns+` WHERE id = $1`, id)
	if err == nil && len(found) == 0 {
		err = errNotFound
	}
	if err != nil {
		return feedback{}, err
	}
	return found[0], nil
}

func (c *Console) queryFeedback(ctx context.Context, text string, args ...any) ([]feedback, error) {
	all, err := database.List(ctx, c.DB.Read(), scanFeedback, text, args...)
	if err != nil {
		return nil, fmt.Errorf("read feedback: %w", err)
	}
	return all, nil
}

func scanFeedback(row database.Scanner) (f feedback, err error) {
	var at, repliedAt int64
	err = row.Scan(&f.ID, &at, &f.AccountID, &f.Page, &f.RequestID, &f.Message, &f.Status, &f.Reply, &f.RepliedBy, &repliedAt)
	f.Time = time.UnixMicro(at).UTC()
	if repliedAt > 0 {
		f.RepliedAt = time.UnixMicro(repliedAt).UTC()
	}
	return f, err
}

// updateFeedback stores the status and the reply. A reply that differs from the last one counts as unread.
func (c *Console) updateFeedback(ctx context.Context, f feedback, newReply bool) error {
	const text = `UPDATE feedback SET status = $1, reply = $2, replied_by = $3, replied_at = $4,
		reply_read = CASE WHEN $5 THEN FALSE ELSE reply_read END WHERE id = $6`
	repliedAt := int64(0)
	if !f.RepliedAt.IsZero() {
		repliedAt = f.RepliedAt.UnixMicro()
	}
	return c.writeFeedback(ctx, text, f.Status, f.Reply, f.RepliedBy, repliedAt, newReply, f.ID)
}

// hasUnreadReply reports whether a reply to the account's feedback has not been read.
func (c *Console) hasUnreadReply(ctx context.Context, account string) (unread bool, err error) {
	const text = `SELECT EXISTS (SELECT 1 FROM feedback WHERE account_id = $1 AND reply <> '' AND NOT reply_read)`
	if err := c.DB.Read().QueryRowContext(ctx, text, account).Scan(&unread); err != nil {
		return false, fmt.Errorf("read feedback: %w", err)
	}
	return unread, nil
}

// markRepliesRead records that the account has seen the replies, if there is one that it has not.
func (c *Console) markRepliesRead(ctx context.Context, account string) error {
	if unread, err := c.hasUnreadReply(ctx, account); err != nil || !unread {
		return err
	}
	return c.writeFeedback(ctx, `UPDATE feedback SET reply_read = TRUE WHERE account_id = $1 AND NOT reply_read`, account)
}
