-- +goose Up

-- What administrators do about feedback. A reply is shown to the account that sent the feedback.
ALTER TABLE feedback ADD COLUMN status TEXT NOT NULL DEFAULT 'open'; -- open, in progress, done or declined
ALTER TABLE feedback ADD COLUMN reply TEXT NOT NULL DEFAULT '';
ALTER TABLE feedback ADD COLUMN replied_by TEXT NOT NULL DEFAULT ''; -- the administrator's address
ALTER TABLE feedback ADD COLUMN replied_at BIGINT NOT NULL DEFAULT 0; -- 0 if there is no reply
ALTER TABLE feedback ADD COLUMN reply_read BOOLEAN NOT NULL DEFAULT FALSE; -- the account has opened its feedback since

CREATE INDEX feedback_account ON feedback (account_id, time);

-- The filters of the audit log.
CREATE INDEX audit_actor ON audit (actor, time);
CREATE INDEX audit_action ON audit (action, time);
CREATE INDEX audit_subject ON audit (subject, time);
