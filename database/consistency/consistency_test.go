package consistency_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"basegate/batch/storage"
	"basegate/budget/cluster"
	"basegate/database"
	"basegate/database/consistency"
	"basegate/database/postgres"
	"basegate/identity"
	"basegate/internal/databasetest"
	"basegate/internal/postgrestest"
)

func TestMain(m *testing.M) { databasetest.Main{M: m}.Run() }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ledger is a database with two accounts, a key each, and requests of this month and the one before.
type ledger struct {
	*consistency.Ledger

	conn *pgx.Conn
	db   *postgres.DB
}

func (l *ledger) endLeft(ctx context.Context) (int64, error) { return cluster.EndLeft(ctx, l.db) }

func newLedger(t *testing.T) *ledger {
	t.Helper()
	server := postgrestest.Shared(t)
	db, err := postgres.Open(t.Context(), postgres.Settings{URL: server.URL(server.Create(t, "")), StatementTimeout: time.Minute})
	must(t, err)
	t.Cleanup(db.Close)
	_, err = db.Migrate(t.Context())
	must(t, err)
	conn, err := db.Connect(t.Context())
	must(t, err)
	t.Cleanup(func() { must(t, conn.Close(context.WithoutCancel(t.Context()))) })
	l := &ledger{consistency.NewLedger(db), conn, db}
	l.Observe = 10 * time.Millisecond
	l.exec(t, `
		INSERT INTO accounts (id, email, name, admin, state, created_at)
			SELECT 'acc' || i, 'e' || i, '', false, 'active', 0 FROM generate_series(1, 2) i;
		INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, created_at)
			SELECT 'key' || i, 'acc' || i, '', '', i::text::bytea, 'active', 0 FROM generate_series(1, 2) i;
		SELECT ledger_partition_v1(ledger_now() - i * 3600000000) FROM generate_series(1, 800, 100) i;
		SELECT ledger_partition_v1(ledger_now() - 800 * 3600000000);
		INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream, status, code,
				state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us, boot_us, attempts)
			SELECT 'req' || i, ledger_now() - i * 3600000000, 'key' || 1 + i % 2, 'acc' || 1 + i % 2, 'm', 'b', '', '', '', false, 200, '', 'settled', i, 2 * i, 0, 0, 0, 0, ''
			FROM generate_series(1, 800) i;
		SELECT ledger_fill_v1()`)
	return l
}

func (l *ledger) exec(t *testing.T, statements string) {
	t.Helper()
	_, err := l.conn.Exec(t.Context(), statements)
	must(t, err)
}

func (l *ledger) check(t *testing.T) (problems []string) {
	t.Helper()
	must(t, l.Check(t.Context(), func(p consistency.Problem) { problems = append(problems, p.String()) }))
	return problems
}

func (l *ledger) repair(t *testing.T) (done []string) {
	t.Helper()
	must(t, l.Repair(t.Context(), l.endLeft, func(text string) { done = append(done, text) }))
	return done
}

// want fails unless the problems are exactly those with the texts, in any order.
func want(t *testing.T, problems []string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, text) }) {
			t.Errorf("got %q, want a problem with %q", problems, text)
		}
	}
	if len(problems) != len(texts) {
		t.Errorf("got %d problems, want %d: %q", len(problems), len(texts), problems)
	}
}

func TestCountersAreComparedAndCountedAgain(t *testing.T) {
	l := newLedger(t)
	want(t, l.check(t))
	l.exec(t, `UPDATE owner SET day_in = day_in + 1, month_in = month_in + 1, running = 1, reserved_month_in = 7 WHERE id = 'key1';
		UPDATE owner SET waiting = 2, reserved_day_in = 1, reserved_month_out = 3, life_out = life_out - 1, reserved_life_in = 2 WHERE id = 'acc2'`)
	want(t, l.check(t), "key1 of account acc1: day_in", "key1 of account acc1: month_in", "running is 1, its rows have 0", "reserved_month_in is 7",
		"acc2 of account acc2: waiting is 2", "reserved_day_in is 1", "reserved_month_out is 3",
		"acc2 of account acc2: life_out", "reserved_life_in is 2")
	want(t, l.repair(t), "9 counters of 2 accounts are counted again")
	want(t, l.check(t))
	want(t, l.repair(t))
}

// The rollups have what requests used whose rows are not kept.
func TestTokensOfAllTimeOutliveTheRows(t *testing.T) {
	l := newLedger(t)
	var input int
	const of = `SELECT life_in FROM owner WHERE id = 'key1'`
	must(t, l.conn.QueryRow(t.Context(), of).Scan(&input))
	l.exec(t, `INSERT INTO usage_series (id, account_id, key_id, model, endpoint, workload) VALUES (1, 'acc1', 'key1', '', '', '');
		UPDATE usage_watermark SET kept_since = ledger_start(ledger_month(ledger_day(ledger_now())));
		INSERT INTO usage_days (series, period, requests, errors, streams, prompt_tokens, completion_tokens)
			SELECT 1, ledger_day(time) - date '1970-01-01', 1, 0, 0, sum(prompt_tokens), sum(completion_tokens) FROM requests
			WHERE key_id = 'key1' GROUP BY 2;
		DELETE FROM requests WHERE key_id = 'key1' AND time < (SELECT kept_since FROM usage_watermark);
		DELETE FROM requests WHERE key_id = 'key2'; UPDATE owner SET life_in = 0 WHERE id = 'key1'; SELECT ledger_recount_v1(NULL)`)
	want(t, l.check(t))
	var counted int
	if must(t, l.conn.QueryRow(t.Context(), of).Scan(&counted)); counted != input || input == 0 {
		t.Errorf("key1 has used %d tokens, want %d", counted, input)
	}
}

// The requests of a key count against the one that has made it too.
func TestCountersOfAParentHaveTheRequestsOfItsKeys(t *testing.T) {
	l := newLedger(t)
	l.exec(t, `INSERT INTO keys (id, account_id, parent, name, prefix, secret_hash, state, created_at)
			VALUES ('child', 'acc1', 'key1', '', '', 'child', 'active', 0);
		INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream, status, code,
				state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us, boot_us, attempts)
			VALUES ('of child', ledger_now(), 'child', 'acc1', 'm', 'b', '', '', '', false, 200, '', 'settled', 5, 7, 0, 0, 0, 0, '')`)
	want(t, slices.DeleteFunc(l.check(t), func(p string) bool { return !strings.Contains(p, "_in is") }),
		"child of account acc1: life_in is 0, its rows have 5", "child of account acc1: month_in", "child of account acc1: day_in",
		"key1 of account acc1: life_in", "key1 of account acc1: month_in", "key1 of account acc1: day_in",
		"acc1 of account acc1: life_in", "acc1 of account acc1: month_in", "acc1 of account acc1: day_in")
	want(t, l.repair(t), "18 counters of 1 accounts are counted again")
	want(t, l.check(t))
}

func TestOwnersThatAreMissingAreNamed(t *testing.T) {
	l := newLedger(t)
	l.exec(t, `DELETE FROM owner WHERE id = 'key2'`)
	want(t, l.check(t), "key2 is not on the ledger")
	want(t, l.repair(t), "1 are put on the ledger")
	want(t, l.check(t))
}

// After pg_restore to another server, transactions begin with lower numbers than those of the requests.
func TestRequestsOfAnotherServerAreRenumbered(t *testing.T) {
	l := newLedger(t)
	l.exec(t, `UPDATE requests SET xid = (1000000000 + prompt_tokens)::text::xid8; UPDATE usage_watermark SET seq = 1000000000 + 700`)
	want(t, l.check(t), "numbers of another server's transactions")
	want(t, l.repair(t), "numbers of this server's transactions")
	want(t, l.check(t))
	var included, left int
	must(t, l.conn.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE xid <= w.seq::text::xid8),
		count(*) FILTER (WHERE xid > w.seq::text::xid8 AND xid < pg_snapshot_xmin(pg_current_snapshot())) FROM requests, usage_watermark w`).Scan(&included, &left))
	if included != 700 || left != 100 {
		t.Errorf("the rollups have %d requests and are to add %d, want 700 and 100", included, left)
	}
}

func TestSumsBeyondACapAreNotesOnly(t *testing.T) {
	l := newLedger(t)
	l.exec(t, `UPDATE owner SET caps = '{"month_total": 1}' WHERE id = 'acc1'`)
	var notes int
	must(t, l.Check(t.Context(), func(p consistency.Problem) {
		if p.Note && strings.Contains(p.Text, "acc1: month_total is 1, used and reserved are") {
			notes++
		}
	}))
	var used bool
	must(t, l.conn.QueryRow(t.Context(), `SELECT month_in + month_out > 1 FROM owner WHERE id = 'acc1'`).Scan(&used))
	if want := map[bool]int{true: 1}[used]; notes != want {
		t.Errorf("got %d notes, want %d", notes, want)
	}
}

// addLease inserts a request in flight with its reservation.
func (l *ledger) addLease(t *testing.T, id string, gateway, epoch int) {
	t.Helper()
	_, err := l.conn.Exec(t.Context(), `INSERT INTO inflight (request_id, gateway, epoch, account, key, day, time, reserved_in, reserved_out, prompt_tokens,
			completion_tokens, model, endpoint, workload, user_tag, stream, details)
		VALUES ($1, $2, $3, 'acc1', 'key1', ledger_day(ledger_now()), ledger_now(), 10, 20, 10, 5, 'm', '', '', '', false, '')`, id, gateway, epoch)
	must(t, err)
	l.exec(t, `UPDATE owner SET running = running + 1, reserved_day_in = reserved_day_in + 10, reserved_day_out = reserved_day_out + 20,
		reserved_life_in = reserved_life_in + 10, reserved_life_out = reserved_life_out + 20,
		reserved_month_in = reserved_month_in + 10, reserved_month_out = reserved_month_out + 20 WHERE id IN ('acc1', 'key1')`)
}

func TestRequestsOfGatewaysThatDoNotRunAreEnded(t *testing.T) {
	l := newLedger(t)
	l.exec(t, `INSERT INTO gateway (name, version, epoch, alive, beat, beat_at) VALUES
		('serving', '', 1, true, 5, ledger_now()), ('left', '', 2, false, 5, 0), ('silent', '', 3, true, 5, 0)`)
	for i, lease := range []struct{ gateway, epoch int }{{1, 1}, {2, 1}, {3, 3}, {99, 1}} {
		l.addLease(t, fmt.Sprint("lease", i), lease.gateway, lease.epoch)
	}
	want(t, l.check(t), "1 requests in flight and 0 waiters of gateway left, in an epoch that has ended",
		"gateway silent, whose heartbeats have stopped", "gateway 99, which does not exist")
	want(t, l.repair(t), "observing", "3 requests of ended gateways")
	want(t, l.check(t))
	var left string
	var interrupted, tokens int
	must(t, l.conn.QueryRow(t.Context(), `SELECT string_agg(request_id, ' ') FROM inflight`).Scan(&left))
	must(t, l.conn.QueryRow(t.Context(), `SELECT count(*), sum(prompt_tokens + completion_tokens) FROM requests WHERE state = 'interrupted'`).Scan(&interrupted, &tokens))
	if left != "lease0" || interrupted != 3 || tokens != 45 {
		t.Errorf("left in flight: %s, want lease0; %d interrupted with %d tokens, want 3 with 45", left, interrupted, tokens)
	}
}

func TestGatewayThatReturnsWhileItIsObservedIsLeft(t *testing.T) {
	l := newLedger(t)
	l.exec(t, `INSERT INTO gateway (name, version, epoch, alive, beat, beat_at) VALUES ('cut off', '', 1, true, 5, 0)`)
	l.addLease(t, "lease", 1, 1)
	must(t, l.Repair(t.Context(), l.endLeft, func(text string) {
		if strings.Contains(text, "observing") {
			server, err := pgx.ConnectConfig(t.Context(), l.conn.Config())
			must(t, err)
			defer server.Close(context.WithoutCancel(t.Context()))
			_, err = server.Exec(t.Context(), `UPDATE gateway SET beat = 6, beat_at = ledger_now()`)
			must(t, err)
		} else {
			t.Errorf("the repair did: %s", text)
		}
	}))
	var left int
	must(t, l.conn.QueryRow(t.Context(), `SELECT count(*) FROM inflight`).Scan(&left))
	if left != 1 {
		t.Error("the request of a gateway that runs was ended")
	}
}

// orphanObject has the form of an object's name.
const orphanObject = "abcdefghijklmnopqrstuvwxyz"

// A command with the configuration of another database, or before a folder is mounted, must not destroy files.
func TestStorageOfAnotherDatabaseIsLeftAlone(t *testing.T) {
	folder := t.TempDir()
	db, err := database.Open(t.Context(), databasetest.Settings(t, filepath.Join(folder, "basegate.db")), zap.NewNop())
	must(t, err)
	defer db.Close()
	store, err := storage.OpenDisk(filepath.Join(folder, "files"))
	must(t, err)
	defer store.Close()
	must(t, store.Put(t.Context(), orphanObject, []byte("bytes"), true))
	files := consistency.NewFiles(db, store, identity.New(db, zap.NewNop(), identity.Settings{}).AuditLog)
	var done []string
	must(t, files.Repair(t.Context(), func(text string) { done = append(done, text) }))
	want(t, done, "1 objects of 5 bytes without a row are left")
	if _, err := os.Stat(filepath.Join(folder, "files", orphanObject)); err != nil {
		t.Errorf("an object of another database: %v", err)
	}
	if db.Postgres() == nil {
		return
	}
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), `INSERT INTO objects (name, state, file) VALUES ('missing', 'kept', 'storage')`)
		return err
	}))
	if err := files.Repair(t.Context(), func(string) {}); err == nil || !strings.Contains(err.Error(), "the storage is not the one that the gateways use") {
		t.Errorf("got %v, want that the storage is another one", err)
	}
}

func TestFilesAreComparedWithTheStorage(t *testing.T) {
	folder := t.TempDir()
	db, err := database.Open(t.Context(), databasetest.Settings(t, filepath.Join(folder, "basegate.db")), zap.NewNop())
	must(t, err)
	defer db.Close()
	store, err := storage.OpenDisk(filepath.Join(folder, "files"))
	must(t, err)
	defer store.Close()
	for name, size := range map[string]int{"whole1": 6, "whole2": 4, "errors": 2, "short": 4, "unused": 3, "document": 8, orphanObject: 7, "old": 2, "README.txt": 1} {
		must(t, store.Put(t.Context(), name, make([]byte, size), true))
	}
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		for _, name := range []string{"whole", "short", "missing"} {
			_, err := tx.ExecContext(t.Context(), `INSERT INTO files (id, account_id, key_id, purpose, filename, bytes, created_at, expires_at)
				VALUES ($1, 'acc', 'key', 'batch', 'x', 10, 5, 4000000000)`, "file-"+name)
			if err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(t.Context(), `INSERT INTO batches (id, account_id, key_id, endpoint, completion_window, input_file_id, status,
				errors, models, created_at, expires_at, total, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens)
			VALUES ('batch_1', 'acc', 'key', '/v1/completions', '24h', 'file-x', 'failed', 'errors', '[]', 1, 2, 0, 0, 0, 0, 0, 0, 0)`)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(t.Context(), `INSERT INTO accounts (id, email, name, admin, state, created_at) VALUES ('acc', 'e', '', false, 'active', 0)`)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(t.Context(), `INSERT INTO prompts (id, account_id, name, model, version, latest, updated_at, object, document_bytes, bytes)
			VALUES ('pr_object', 'acc', 'n', 'm', 1, false, 1, 'lost', 8, 8), ('pr_object', 'acc', 'n', 'm', 2, true, 1, 'document', 8, 8),
				('pr_row', 'acc', 'n', 'm', 1, true, 1, '', 8, 8)`)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(t.Context(), `INSERT INTO objects (name, state, file, start, bytes) VALUES ('whole1', 'kept', 'file-whole', 0, 6),
			('whole2', 'kept', 'file-whole', 6, 4), ('short', 'kept', 'file-short', 0, 10), ('missing', 'kept', 'file-missing', 0, 10),
			('unused', 'kept', 'file-deleted', 0, 3), ('errors', 'kept', '', 0, 2), ('document', 'kept', '', 0, 8), ('lost', 'kept', '', 0, 8), ('old', 'deleted', 'file-old', 0, 2)`)
		return err
	}))
	audit := identity.New(db, zap.NewNop(), identity.Settings{}).AuditLog
	files := consistency.NewFiles(db, store, audit)
	var problems, notes, done []string
	check := func() {
		t.Helper()
		problems, notes = nil, nil
		must(t, files.Check(t.Context(), func(p consistency.Problem) {
			if p.Note {
				notes = append(notes, p.String())
			} else {
				problems = append(problems, p.String())
			}
		}))
	}
	check()
	want(t, notes, "saved prompt pr_object version 1 of account acc: its 8 bytes are not")
	want(t, problems, "file file-short of account acc: 4 of its 10 bytes", "file file-missing of account acc: its 10 bytes are not",
		"1 objects belong to no file", "1 objects of 7 bytes are in the storage without a row")
	must(t, files.Repair(t.Context(), func(text string) { done = append(done, text) }))
	want(t, done, "file-short is marked as lost", "file-missing is marked as lost", "saved prompt pr_object version 1 of account acc: its 8 bytes are not in the storage; it is left", "1 objects that belong to no file will be deleted",
		"1 objects of 7 bytes without a row are deleted")
	check()
	want(t, problems)
	want(t, notes, "file-short", "file-missing", "saved prompt pr_object version 1 of account acc: its 8 bytes are not")
	entries, _, err := audit.Find(t.Context(), identity.AuditFilter{}, "", 10)
	must(t, err)
	if len(entries) != 2 || entries[0].Action != "mark file as lost" || !strings.HasPrefix(entries[0].Subject, "file-") {
		t.Errorf("audit log: %+v, want two files that are marked as lost", entries)
	}
	var prompts int
	must(t, db.Read().QueryRowContext(t.Context(), `SELECT count(*) FROM prompts`).Scan(&prompts))
	if prompts != 3 {
		t.Errorf("%d versions of prompts are left, want all 3", prompts)
	}
	if _, err := os.Stat(filepath.Join(folder, "files", "README.txt")); err != nil {
		t.Errorf("a file that is no object: %v", err)
	}
	var expired int
	must(t, db.Read().QueryRowContext(t.Context(), `SELECT count(*) FROM files WHERE expires_at < 4000000000`).Scan(&expired))
	if expired != 2 {
		t.Errorf("%d files have expired, want 2", expired)
	}
}
