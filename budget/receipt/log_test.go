package receipt_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"basegate/budget/receipt"
	"basegate/database"
)

// file returns the text of a file in the folder of the log.
func (f *fixture) file(name string) string {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join(f.settings.Folder, name))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(text)
}

func (f *fixture) writeFile(path, text string) {
	f.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func TestLogGoesOnAfterARestart(t *testing.T) {
	f := newFixture(t)
	f.start()
	first := f.whole(f.sealPlain())
	key, before := f.log.VerifierKey(), f.file("head")
	f.stop()
	f.start()
	if f.log.VerifierKey() != key || f.log.Size() != 1 {
		t.Errorf("after a restart the key is %s and the size %d, want %s and 1", f.log.VerifierKey(), f.log.Size(), key)
	}
	f.add(260)
	if err := verify([]byte(request), []byte(answer), first, key); err != nil {
		t.Errorf("a receipt from before the restart: %v", err)
	}
	older, err := receipt.OpenCheckpoint(before, key)
	if err != nil {
		t.Fatal(err)
	}
	newer, err := receipt.OpenCheckpoint(f.file("head"), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := receipt.CheckConsistency(older, newer, receipt.StoredTiles(t.Context(), f.db.Read())); err != nil || newer.Size != 261 {
		t.Errorf("the tree head of %d entries: %v", newer.Size, err)
	}
}

func TestEntriesOfACrashedProcessAreAddedAtTheStart(t *testing.T) {
	f := newFixture(t)
	if err := f.open(); err != nil { // the sequencer does not run
		t.Fatal(err)
	}
	f.sealPlain()
	f.start()
	f.add(1)
	if found, err := receipt.Check(t.Context(), f.settings, f.db, true); err != nil || found.Size != 2 || found.Waiting != 0 {
		t.Errorf("got %+v, error %v, want two entries", found, err)
	}
}

func TestSigningKeyIsForItsOwnerAlone(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.add(1)
	for name, want := range map[string]os.FileMode{"": 0o700, "key": 0o600, "head": 0o600} {
		info, err := os.Stat(filepath.Join(f.settings.Folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, want %v", name, info.Mode().Perm(), want)
		}
	}
}

// fillTile adds as many entries as the first hash tile has, so that it is stored.
func (f *fixture) fillTile() {
	f.t.Helper()
	f.start()
	f.add(256)
	f.stop()
}

// A log that cannot extend what was given out must not be signed with the same key.
func TestStartRefusesALogThatDoesNotExtendItsTreeHeads(t *testing.T) {
	const unprotected = "DROP TRIGGER receipts_deleted"
	cut, fork := func(err error) bool { return errors.As(err, new(*receipt.CutError)) }, func(err error) bool { return errors.As(err, new(*receipt.ForkError)) }
	says := func(text string) func(error) bool {
		return func(err error) bool { return err != nil && strings.Contains(err.Error(), text) }
	}
	for _, c := range []struct {
		name   string
		change func(f *fixture)
		want   func(error) bool
	}{
		{"the tail was cut", func(f *fixture) { f.exec(unprotected, "DELETE FROM receipts WHERE seq = 5") }, cut},
		{"an entry was removed", func(f *fixture) { f.exec(unprotected, "DELETE FROM receipts WHERE seq = 3") }, cut},
		{"the whole log was removed", func(f *fixture) {
			f.exec(unprotected, "DELETE FROM receipts", "DELETE FROM receipt_tiles", "DELETE FROM receipt_log")
		}, cut},
		{"an entry was added", func(f *fixture) {
			f.exec("INSERT INTO receipts (seq, leaf_hash, entry, nonce, key_id) VALUES (6, zeroblob(32), '', '', '')")
		}, says("behind its latest tree head")},
		{"a hash tile was changed", func(f *fixture) {
			f.fillTile()
			f.exec("UPDATE receipt_tiles SET hashes = zeroblob(length(hashes))")
		}, says("damaged")},
		{"the hash tiles were removed", func(f *fixture) {
			f.fillTile()
			f.exec("DELETE FROM receipt_tiles")
		}, says("missing")},
		{"the tree head was changed", func(f *fixture) {
			f.exec("UPDATE receipt_log SET checkpoint = replace(checkpoint, char(10) || '5' || char(10), char(10) || '4' || char(10))")
		}, says("damaged")},
		{"the key is missing", func(f *fixture) { os.Remove(filepath.Join(f.settings.Folder, "key")) }, says("the signing key of the receipt log is missing")},
		{"the key is another one", func(f *fixture) {
			other := newFixture(f.t)
			other.start()
			f.writeFile(filepath.Join(f.settings.Folder, "key"), other.file("key"))
		}, says("is not that of the receipt log")},
		{"the key is no key", func(f *fixture) { f.writeFile(filepath.Join(f.settings.Folder, "key"), "x\n") }, says("holds no signing key")},
		{"the published file is something else", func(f *fixture) {
			f.settings.Publish = filepath.Join(f.t.TempDir(), "config.yaml")
			f.writeFile(f.settings.Publish, "models: []\n")
		}, says("is not a tree head of this receipt log")},
		{"the published tree head has other entries", func(f *fixture) {
			f.settings.Publish = filepath.Join(f.t.TempDir(), "head")
			f.writeFile(f.settings.Publish, f.file("head"))
			f.stop()
			// the same key signs another log of five entries
			f.exec(unprotected, "DELETE FROM receipts", "DELETE FROM receipt_tiles", "DELETE FROM receipt_log")
			os.Remove(filepath.Join(f.settings.Folder, "head"))
			published := f.settings.Publish
			f.settings.Publish = ""
			f.start()
			f.add(5)
			f.stop()
			f.settings.Publish = published
		}, fork},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			f.start()
			f.add(5)
			f.stop()
			c.change(f)
			if err := f.open(); !c.want(err) {
				t.Errorf("the start says %v", err)
			}
		})
	}
}

func TestEntriesCannotBeChangedOrDeleted(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.add(1)
	for _, statement := range []string{"DELETE FROM receipts", "UPDATE receipts SET entry = ''", "UPDATE receipts SET seq = 2"} {
		if err := f.tryExec(statement); err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

func TestCheckFindsWhatWasChanged(t *testing.T) {
	for name, change := range map[string]string{
		"an entry":     "UPDATE receipts SET entry = replace(entry, '\"model\":\"m\"', '\"model\":\"n\"') WHERE seq = 2",
		"a leaf hash":  "UPDATE receipts SET leaf_hash = zeroblob(32) WHERE seq = 2",
		"a tile":       "UPDATE receipt_tiles SET hashes = zeroblob(length(hashes))",
		"its tail":     "DELETE FROM receipts WHERE seq = 256",
		"the key":      "UPDATE receipt_log SET verifier_key = 'x'",
		"the size":     "UPDATE receipt_log SET size = 2",
		"a tile's end": "UPDATE receipt_tiles SET hashes = substr(hashes, 1, 64)",
	} {
		f := newFixture(t)
		f.fillTile()
		if _, err := receipt.Check(t.Context(), f.settings, f.db, true); err != nil {
			t.Fatal(err)
		}
		f.exec("DROP TRIGGER receipts_deleted", "DROP TRIGGER receipts_updated", change)
		if found, err := receipt.Check(t.Context(), f.settings, f.db, true); err == nil {
			t.Errorf("after a change of %s: got %+v", name, found)
		}
	}
	f := newFixture(t)
	if _, err := receipt.Check(t.Context(), f.settings, f.db, true); !errors.Is(err, receipt.ErrNoLog) {
		t.Errorf("without a log: got %v", err)
	}
}

func TestNewLogKeepsTheEntriesUnderAnotherKey(t *testing.T) {
	f := newFixture(t)
	f.settings.Publish = filepath.Join(t.TempDir(), "head")
	f.start()
	old := f.whole(f.sealPlain())
	f.add(299)
	oldKey := f.log.VerifierKey()
	f.stop()
	f.exec("DROP TRIGGER receipts_deleted", "DELETE FROM receipts WHERE seq > 280")
	key, suffix, err := receipt.NewLog(t.Context(), f.settings, f.db, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	if want := origin + "/20260102T030405Z+"; !strings.HasPrefix(key, want) || suffix != ".until-20260102T030405Z" {
		t.Errorf("the new key is %s and the suffix %s, want %s… and the time", key, suffix, want)
	}
	f.start()
	f.add(1)
	if f.log.Size() != 281 || f.log.VerifierKey() != key || f.log.VerifierKey() == oldKey {
		t.Errorf("the new log has %d entries and the key %s, want 281 and %s", f.log.Size(), f.log.VerifierKey(), key)
	}
	if err := verify([]byte(request), []byte(answer), old, oldKey); err != nil {
		t.Errorf("a receipt of the old log: %v", err)
	}
	if _, err := receipt.Check(t.Context(), f.settings, f.db, true); err != nil {
		t.Error(err)
	}
}

func TestTreeHeadsArePublishedToAFile(t *testing.T) {
	f := newFixture(t)
	f.settings.Publish = filepath.Join(t.TempDir(), "head")
	f.start()
	f.add(2)
	key := f.log.VerifierKey()
	f.sealPlain()
	f.stop() // publishes the last one, of an entry for which nobody waited
	text, err := os.ReadFile(f.settings.Publish)
	if err != nil {
		t.Fatal(err)
	}
	if head, err := receipt.OpenCheckpoint(string(text), key); err != nil || head.Size != 3 {
		t.Errorf("published %+v, error %v, want three entries", head, err)
	}
	f.start() // which the published file allows
}

func TestTreeHeadsArePublishedToAWebhookUntilItAnswers(t *testing.T) {
	received := make(chan string, 10)
	refused := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil || r.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("received %q, error %v, as %s", body, err, r.Header.Get("Content-Type"))
		}
		if !refused {
			refused = true
			w.WriteHeader(http.StatusInternalServerError)
		}
		received <- string(body)
	}))
	defer server.Close()
	f := newFixture(t)
	f.settings.Publish = server.URL
	f.start()
	defer f.stop()
	if head, err := receipt.OpenCheckpoint(<-received, f.log.VerifierKey()); err != nil {
		t.Errorf("received %+v, error %v", head, err)
	}
}

func TestCloseAddsTheEntriesThatAreLeft(t *testing.T) {
	f := newFixture(t)
	f.start()
	for range 10 {
		f.sealPlain()
	}
	f.stop()
	if found, err := receipt.Check(t.Context(), f.settings, f.db, true); err != nil || found.Size != 10 {
		t.Errorf("got %+v, error %v, want 10 entries", found, err)
	}
}

func TestReceiptWithoutASequencerHasNoProof(t *testing.T) {
	f := newFixture(t)
	if err := f.open(); err != nil {
		t.Fatal(err)
	}
	entry := f.sealPlain()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := entry.Receipt(ctx)
	if r.Checkpoint != "" || r.Entry == nil || r.Nonce == nil {
		t.Fatalf("got %+v, want a receipt without a proof", r)
	}
	if err := r.Verify([]byte(request), []byte(answer), ""); !errors.Is(err, receipt.ErrNoProof) {
		t.Errorf("it verifies with %v, want ErrNoProof", err)
	}
}

// A client may check a tree head against the database as soon as it is given out.
func TestTreeHeadThatIsGivenOutIsInTheDatabase(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.add(3)
	older := f.file("head")
	f.add(259)
	checkpoint, key, err := receipt.Latest(t.Context(), f.db)
	if err != nil || checkpoint != f.file("head") {
		t.Fatalf("the latest tree head is %q, error %v, want %q", checkpoint, err, f.file("head"))
	}
	var heads [2]receipt.TreeHead
	for i, text := range []string{older, checkpoint} {
		if heads[i], err = receipt.OpenCheckpoint(text, key); err != nil {
			t.Fatal(err)
		}
	}
	if err := receipt.CheckConsistency(heads[0], heads[1], receipt.StoredTiles(t.Context(), f.db.Read())); err != nil || heads[1].Size != 262 {
		t.Errorf("the tree head of %d entries: %v", heads[1].Size, err)
	}
	for _, entries := range []bool{true, false} {
		if found, err := receipt.Check(t.Context(), f.settings, f.db, entries); err != nil || found.Size != 262 || found.Waiting != 0 {
			t.Errorf("got %+v, error %v, want 262 entries", found, err)
		}
	}
}

func TestStartRefusesALogThatLacksTheLatestTreeHead(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.add(3)
	backup := filepath.Join(t.TempDir(), "base.db")
	if _, err := database.Backup(t.Context(), f.path, backup); err != nil {
		t.Fatal(err)
	}
	f.add(2)
	f.stop()
	f.openDatabase(backup)
	if err := f.open(); !errors.As(err, new(*receipt.CutError)) {
		t.Errorf("the start says %v, want a CutError", err)
	}
	if _, err := receipt.Check(t.Context(), f.settings, f.db, true); !errors.As(err, new(*receipt.CutError)) {
		t.Errorf("the check says %v, want a CutError", err)
	}
}

// The tree head is written in place; a power failure may leave half of one that nobody has seen.
func TestHalfOfTheLatestTreeHeadIsIgnored(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.add(2)
	f.stop()
	whole := f.file("head")
	f.writeFile(filepath.Join(f.settings.Folder, "head"), whole[:60]+strings.Repeat("\x00", len(whole)-60))
	f.start()
	f.add(1)
	if _, err := receipt.OpenCheckpoint(f.file("head"), f.log.VerifierKey()); err != nil {
		t.Error(err)
	}
}

// A disk that does not take the file of the tree head must not break the answer, whose entry is on disk.
func TestReceiptHasNoProofWhileNoTreeHeadCanBeWritten(t *testing.T) {
	f := newFixture(t)
	f.start()
	head := filepath.Join(f.settings.Folder, "head")
	if err := errors.Join(os.Remove(head), os.Mkdir(head, 0o700)); err != nil {
		t.Fatal(err)
	}
	entry := f.sealPlain()
	if r := entry.Receipt(t.Context()); r.Checkpoint != "" {
		t.Fatalf("got %+v, want a receipt without a proof", r)
	}
	if err := os.Remove(head); err != nil {
		t.Fatal(err)
	}
	if err := f.proven(entry).Verify([]byte(request), []byte(answer), ""); err != nil {
		t.Errorf("once the disk works: %v", err)
	}
}
