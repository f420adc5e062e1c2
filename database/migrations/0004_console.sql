-- +goose Up

-- What the console needs of accounts. Of passwords, invitations and sessions there are only hashes.

CREATE TABLE passwords (
    account_id TEXT PRIMARY KEY REFERENCES accounts (id),
    hash       TEXT NOT NULL, -- argon2id, in the PHC string format
    changed_at BIGINT NOT NULL
);

CREATE TABLE invitations (
    token_hash BLOB PRIMARY KEY,
    account_id TEXT NOT NULL UNIQUE REFERENCES accounts (id), -- a new one takes the place of the last
    expires_at BIGINT NOT NULL
);

CREATE TABLE sessions (
    token_hash BLOB PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX sessions_account ON sessions (account_id);

-- What somebody who asks for access has written. The account is pending until an administrator decides.
CREATE TABLE access_requests (
    account_id TEXT PRIMARY KEY REFERENCES accounts (id),
    purpose    TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

-- Who changed what. A row outlives those it names, so it names them in words.
CREATE TABLE audit (
    id      TEXT PRIMARY KEY,
    time    BIGINT NOT NULL,
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL
);

CREATE INDEX audit_time ON audit (time);

CREATE TABLE feedback (
    id         TEXT PRIMARY KEY,
    time       BIGINT NOT NULL,
    account_id TEXT NOT NULL, -- empty where nobody was signed in
    page       TEXT NOT NULL,
    request_id TEXT NOT NULL,
    message    TEXT NOT NULL
);

CREATE INDEX feedback_time ON feedback (time);
