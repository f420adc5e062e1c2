package receipt

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/mod/sumdb/tlog"

	"basegate/database"
	"basegate/internal/wait"
)

// On PostgreSQL several gateways share one log. A settlement, or Write, inserts a pending entry. The gateway that holds
// the lease in receipt_log numbers pending entries, adds them to the tree and signs its head, all in one transaction
// that locks the row of the lease: whatever becomes of a gateway, the rows, the tiles and the tree head fit together.
// The others read tree heads.

const (
	// sharedPace is the time between two rounds of the sequencer, and between two reads of the tree head while requests wait.
	sharedPace = 50 * time.Millisecond
	// sharedIdle is the time between two polls of the log while no request of this gateway waits.
	sharedIdle = 250 * time.Millisecond
	// sharedLimit is the number of entries that one addRound adds.
	sharedLimit = 1024
)

// Shared reports whether several gateways share the log: then a settlement inserts what Pending returns, and Insert is not
// called.
func (s *Sealed) Shared() bool { return s.log.shared }

// Pending returns the entry in the form in which a settlement inserts it into the table pending_receipts.
func (s *Sealed) Pending() []byte { return append(s.nonce[:len(s.nonce):len(s.nonce)], s.text...) }

// insertPending inserts what Pending returns, as a settlement does.
func insertPending(ctx context.Context, tx database.Execer, request, key string, pending []byte) error {
	const text = `INSERT INTO pending_receipts (request_id, key_id, receipt) VALUES ($1, $2, $3)`
	_, err := tx.ExecContext(ctx, text, request, key, pending)
	return err //nolint:wrapcheck // package database classifies it
}

// errPending is returned for a pending entry that no gateway can have inserted.
var errPending = errors.New("a pending entry of the receipt log is damaged")

// checkDurability returns an error if PostgreSQL may lose what it has committed. After a failover to a standby that lacked
// entries, the same key would sign two different logs.
func checkDurability(ctx context.Context, db *database.DB) error {
	const text = `
		SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names') = '',
			(SELECT count(*) FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup')
				+ (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'physical')`
	var commit string
	var unnamed bool
	var standbys int
	if err := db.Read().QueryRowContext(ctx, text).Scan(&commit, &unnamed, &standbys); err != nil {
		return fmt.Errorf("read the replication of the database: %w", err)
	}
	switch {
	case commit == "off":
		return errors.New("receipts.enabled: synchronous_commit of PostgreSQL is off, so an answer is finished before its entry is on disk: set it to on")
	case standbys > 0 && (unnamed || commit == "local"):
		return errors.New("receipts.enabled: PostgreSQL has standbys and waits for none of them (synchronous_standby_names, synchronous_commit), " +
			"so a failover could lose entries that signed tree heads cover: make a standby synchronous, or set receipts.enabled to false")
	}
	return nil
}

// beginShared writes the empty tree of a new log, unless another gateway has done so, and returns the state of the log.
func beginShared(ctx context.Context, db *database.DB, key *signingKey) (s state, err error) {
	if s, err = emptyState(key); err != nil {
		return s, err
	}
	const text = `
		INSERT INTO receipt_log ("only", verifier_key, size, checkpoint) VALUES (1, $1, $2, $3) ON CONFLICT ("only") DO NOTHING`
	err = db.WriteExclusive(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(ctx, text, s.vkey, s.size, s.checkpoint)
		return err //nolint:wrapcheck // package database classifies it
	})
	if err == nil {
		s, _, err = loadState(ctx, db)
	}
	switch {
	case err != nil:
		return s, fmt.Errorf("begin receipt log: %w", err)
	case s.vkey != key.vkey:
		return s, fmt.Errorf("begin receipt log: %w", errOtherKey)
	}
	return s, nil
}

// beginAnew begins a log with the entries of an old one, all under its first tree head: gateways number only pending entries.
// Those that still run stop to add entries, since they have another key.
func beginAnew(ctx context.Context, db *database.DB, key *signingKey) error {
	err := db.WriteExclusive(ctx, func(tx database.Tx) error {
		if err := forgetTree(ctx, tx); err != nil {
			return err
		}
		t, err := newTree(0, nil)
		if err != nil {
			return err
		}
		t.load = func(id tileID) (*tile, error) { return loadTileFrom(ctx, tx, id) }
		for {
			before := t.size
			if err := eachLeaf(ctx, tx, before, roundLimit, t.appendNext); err != nil {
				return err
			}
			if err := saveTiles(ctx, tx, t.takeChanged()); err != nil {
				return err
			}
			t.forgetSaving()
			if t.size == before {
				break
			}
		}
		head := TreeHead{Origin: key.verifier.Name(), Size: t.size}
		if head.Root, err = t.root(t.size); err != nil {
			return err
		}
		checkpoint, err := signTreeHead(&head, key.signer)
		if err != nil {
			return err
		}
		return saveState(ctx, tx, state{key.vkey, head.Size, checkpoint})
	})
	if err != nil {
		return fmt.Errorf("begin receipt log: %w", err)
	}
	return nil
}

var errOtherKey = errors.New("another gateway has begun the log with another signing key: copy its file of receipts.key to this one")

// sequenceShared numbers pending entries whenever this gateway holds or gets the lease, and reads the tree heads that others
// have signed, until ctx ends.
func (l *Log) sequenceShared(ctx context.Context) {
	failing := false
	for {
		err := l.poll(ctx)
		switch {
		case ctx.Err() != nil:
			l.releaseLease(context.WithoutCancel(ctx))
			return
		case err != nil && !failing:
			l.log.Error("entries cannot be added to the receipt log", zap.Error(err))
		case err == nil && failing:
			l.log.Info("entries are added to the receipt log again")
		}
		failing = err != nil
		pause := sharedIdle
		switch {
		case failing:
			pause = retryAfter
		case l.waiting.Load() > 0:
			pause = sharedPace
		}
		idle, cancel := context.WithTimeout(ctx, pause)
		select {
		case <-l.wake: // a request waits
			wait.For(ctx, min(pause, sharedPace))
		case <-idle.Done():
		}
		cancel()
	}
}

// releaseLease adds the entries that are left, and ends the lease, so that another gateway takes it at once.
func (l *Log) releaseLease(ctx context.Context) {
	err := l.poll(ctx)
	if err == nil {
		const text = `UPDATE receipt_log SET lease_until = '-infinity' WHERE holder = $1`
		err = l.db.WriteExclusive(ctx, func(tx database.Tx) error {
			_, err := tx.ExecContext(ctx, text, l.settings.Holder)
			return err //nolint:wrapcheck // package database classifies it
		})
	}
	if err != nil {
		l.log.Warn("entries are left to the next sequencer of the receipt log", zap.Error(err))
	}
}

// poll reads the state of the log, and adds pending entries if this gateway holds the lease or no gateway does.
func (l *Log) poll(ctx context.Context) error {
	const text = `
		SELECT verifier_key, size, checkpoint, holder = $1 OR lease_until <= clock_timestamp(), EXISTS (SELECT FROM pending_receipts)
		FROM receipt_log WHERE "only" = 1`
	var s state
	var mine, pending bool
	err := l.db.Read().QueryRowContext(ctx, text, l.settings.Holder).Scan(&s.vkey, &s.size, &s.checkpoint, &mine, &pending)
	if err != nil {
		return fmt.Errorf("read state of the receipt log: %w", err)
	}
	if s.size != l.published.Load().Size {
		if err := l.follow(ctx, s); err != nil {
			return err
		}
	}
	for mine && pending && err == nil {
		var added int
		added, err = l.addRound(ctx)
		pending = added == sharedLimit
	}
	return err
}

// follow publishes a tree head that another gateway has signed, if it extends the one that was published before.
func (l *Log) follow(ctx context.Context, s state) error {
	t, head, err := l.loadTree(s, func(id tileID) (*tile, error) { return loadTile(ctx, l.db, id) })
	if err != nil {
		return err
	}
	l.install(ctx, t, &signedHead{head, s.checkpoint})
	return nil
}

// loadTree loads the tree of a state, and checks that it extends the published one.
func (l *Log) loadTree(s state, load func(tileID) (*tile, error)) (t *tree, head TreeHead, err error) {
	if s.vkey != l.key.vkey {
		return nil, head, errKeyReplaced
	}
	if head, err = openCheckpoint(s.checkpoint, l.key.verifier); err != nil {
		return nil, head, fmt.Errorf("the receipt log in the database is damaged: check tree head: %w", err)
	}
	if t, err = newTree(s.size, load); err != nil {
		return nil, head, err
	}
	root, err := t.root(s.size)
	switch {
	case err != nil:
		return nil, head, err
	case root != head.Root || head.Size != s.size:
		return nil, head, errDamaged
	}
	if before := l.published.Load(); before != nil {
		err = t.extends(&before.TreeHead, "the one that this gateway has published")
	}
	return t, head, err
}

var errKeyReplaced = errors.New("a new receipt log with another key was begun: restart the gateway with that key")

// install publishes a tree head with its tree.
func (l *Log) install(ctx context.Context, t *tree, head *signedHead) {
	ctx = context.WithoutCancel(ctx)
	t.load = func(id tileID) (*tile, error) { return loadTile(ctx, l.db, id) }
	l.mu.Lock()
	l.tree = t
	l.mu.Unlock()
	l.publishHeadOf(head)
}

// addRound adds pending entries in one transaction, if this gateway holds the lease or gets it.
func (l *Log) addRound(ctx context.Context) (int, error) {
	var added int
	var t *tree
	var signed *signedHead
	ctx = context.WithoutCancel(ctx)
	err := l.db.WriteExclusive(ctx, func(tx database.Tx) error {
		s, held, err := takeLease(ctx, tx, l.settings.Holder)
		if err != nil || !held {
			return err
		}
		var head TreeHead
		t, head, err = l.loadTree(s, func(id tileID) (*tile, error) { return loadTileFrom(ctx, tx, id) })
		if err != nil {
			return err
		}
		if added, err = addPending(ctx, tx, t); err != nil || added == 0 {
			return err
		}
		head.Size = t.size
		if head.Root, err = t.root(t.size); err != nil {
			return err
		}
		checkpoint, err := signTreeHead(&head, l.key.signer)
		if err != nil {
			return err
		}
		if err := saveTiles(ctx, tx, t.takeChanged()); err != nil {
			return err
		}
		signed = &signedHead{head, checkpoint}
		return saveState(ctx, tx, state{l.key.vkey, head.Size, checkpoint})
	})
	if err != nil {
		return 0, fmt.Errorf("add pending entries: %w", err)
	}
	if signed != nil {
		t.forgetSaving()
		l.install(ctx, t, signed)
	}
	return added, nil
}

// takeLease takes or extends the lease of the sequencer, and locks its row until the end of the transaction. held is false if
// another gateway holds it.
func takeLease(ctx context.Context, tx database.Tx, holder string) (s state, held bool, err error) {
	const text = `
		UPDATE receipt_log SET holder = $1, lease_until = clock_timestamp() + interval '1 second'
		WHERE "only" = 1 AND (holder = $1 OR lease_until <= clock_timestamp()) RETURNING verifier_key, size, checkpoint`
	err = tx.QueryRowContext(ctx, text, holder).Scan(&s.vkey, &s.size, &s.checkpoint)
	if errors.Is(err, sql.ErrNoRows) {
		return s, false, nil
	}
	return s, err == nil, err //nolint:wrapcheck // package database classifies it
}

// pendingRows are rows of pending_receipts by column, as one statement inserts them into receipts.
type pendingRows struct {
	pending, seqs           []int64
	leaves, entries, nonces [][]byte
	keys                    []string
}

// addPending numbers pending entries, at most sharedLimit of them, and adds them to a tree. It returns how many there were.
func addPending(ctx context.Context, tx database.Tx, t *tree) (n int, err error) {
	p, err := readPending(ctx, tx)
	if err != nil || len(p.pending) == 0 {
		return 0, err
	}
	// A settlement that was sent again after a failover may have an entry that is in the log already.
	known, err := knownLeaves(ctx, tx, p.leaves)
	if err != nil {
		return 0, err
	}
	added := pendingRows{}
	for i, leaf := range p.leaves {
		if known[Hash(leaf)] {
			continue
		}
		known[Hash(leaf)] = true
		t.append(tlog.Hash(leaf))
		added.seqs, added.leaves = append(added.seqs, t.size), append(added.leaves, leaf)
		added.entries, added.nonces = append(added.entries, p.entries[i]), append(added.nonces, p.nonces[i])
		added.keys = append(added.keys, p.keys[i])
	}
	const insert = `
		INSERT INTO receipts (seq, leaf_hash, entry, nonce, key_id)
		SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bytea[], $5::text[])`
	if _, err := tx.ExecContext(ctx, insert, added.seqs, added.leaves, added.entries, added.nonces, added.keys); err != nil {
		return 0, err //nolint:wrapcheck // package database classifies it
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM pending_receipts WHERE seq = ANY ($1::bigint[])`, p.pending)
	return len(p.pending), err //nolint:wrapcheck // package database classifies it
}

func readPending(ctx context.Context, tx database.Tx) (p pendingRows, err error) {
	const text = `SELECT seq, key_id, receipt FROM pending_receipts ORDER BY seq LIMIT $1`
	rows, err := tx.QueryContext(ctx, text, sharedLimit)
	if err != nil {
		return p, err //nolint:wrapcheck // package database classifies it
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var seq int64
		var key string
		var encoded []byte
		if err := rows.Scan(&seq, &key, &encoded); err != nil {
			return p, err //nolint:wrapcheck // package database classifies it
		}
		if len(encoded) <= len(Hash{}) || !bytes.HasPrefix(encoded[len(Hash{}):], []byte("{")) {
			return p, fmt.Errorf("%w: %d", errPending, seq)
		}
		nonce, entry := encoded[:len(Hash{})], encoded[len(Hash{}):]
		leaf := tlog.RecordHash(entry)
		p.pending, p.keys = append(p.pending, seq), append(p.keys, key)
		p.leaves, p.entries, p.nonces = append(p.leaves, leaf[:]), append(p.entries, entry), append(p.nonces, nonce)
	}
	return p, rows.Err() //nolint:wrapcheck // package database classifies it
}

// knownLeaves returns those of the leaf hashes that the log has.
func knownLeaves(ctx context.Context, tx database.Tx, leaves [][]byte) (known map[Hash]bool, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT leaf_hash FROM receipts WHERE leaf_hash = ANY ($1::bytea[])`, leaves)
	if err != nil {
		return nil, err //nolint:wrapcheck // package database classifies it
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	known = map[Hash]bool{}
	for rows.Next() {
		var leaf []byte
		if err := rows.Scan(&leaf); err != nil {
			return nil, err //nolint:wrapcheck // package database classifies it
		}
		known[Hash(leaf)] = true
	}
	return known, rows.Err() //nolint:wrapcheck // package database classifies it
}

// awaitShared waits until a gateway has numbered an entry and this one has the tree head, and returns it with the place.
func (l *Log) awaitShared(ctx context.Context, leaf Hash) (head *signedHead, seq int64, err error) {
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	for ctx.Err() == nil {
		advanced := *l.advanced.Load()
		head = l.published.Load()
		found, err := findEntry(ctx, l.db, leaf)
		switch {
		case err == nil && head.Size >= found.seq:
			return head, found.seq, nil
		case err != nil && !isUnknown(err) && ctx.Err() == nil:
			return nil, 0, err
		}
		l.wakeSequencer()
		select {
		case <-advanced:
		case <-ctx.Done():
		}
	}
	return nil, 0, fmt.Errorf("wait for tree head: %w", context.Cause(ctx))
}

// awaitPending waits until the entries that are pending at the call have been numbered.
func (l *Log) awaitPending(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, inclusionTimeout)
	defer cancel()
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	var last sql.NullInt64
	if err := l.db.Read().QueryRowContext(ctx, `SELECT max(seq) FROM pending_receipts`).Scan(&last); err != nil {
		return fmt.Errorf("read pending entries: %w", err)
	}
	for pending := last.Valid; pending; {
		l.wakeSequencer()
		if !wait.For(ctx, sharedPace) {
			return fmt.Errorf("wait for pending entries: %w", context.Cause(ctx))
		}
		const text = `SELECT EXISTS (SELECT FROM pending_receipts WHERE seq <= $1)`
		if err := l.db.Read().QueryRowContext(ctx, text, last.Int64).Scan(&pending); err != nil {
			return fmt.Errorf("read pending entries: %w", err)
		}
	}
	return nil
}
