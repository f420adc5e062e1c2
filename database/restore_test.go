package database_test

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"basegate/database"
)

// createBackup returns a database with the given note, which is closed, and a backup of it.
func createBackup(t *testing.T, note string) (path, backup string) {
	t.Helper()
	path, backup = filepath.Join(t.TempDir(), "base.db"), filepath.Join(t.TempDir(), "backup.db")
	db := openNotes(t, database.Settings{Path: path})
	must(t, db.WriteExclusive(t.Context(), execute("INSERT INTO notes (id, text) VALUES (1, $1)", note)))
	must(t, db.Close())
	_, err := database.Backup(t.Context(), path, backup)
	must(t, err)
	return path, backup
}

// readNote returns the note in a database file.
func readNote(t *testing.T, path string) (note string) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path)
	must(t, err)
	defer db.Close()
	must(t, db.QueryRow("SELECT text FROM notes WHERE id = 1").Scan(&note))
	return note
}

func changeNote(t *testing.T, path, note string) {
	t.Helper()
	db := open(t, path)
	must(t, db.WriteExclusive(t.Context(), execute("UPDATE notes SET text = $1", note)))
	must(t, db.Close())
}

func listFiles(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestRestoreReplacesTheDatabaseAndKeepsIt(t *testing.T) {
	path, backup := createBackup(t, "backup")
	changeNote(t, path, "later")
	r, err := database.Restore(t.Context(), path, backup)
	must(t, err)
	if got := readNote(t, path); got != "backup" {
		t.Errorf("the restored database has the note %q", got)
	}
	if got := readNote(t, r.Previous); got != "later" {
		t.Errorf("the kept database has the note %q", got)
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, want 0600", info.Mode().Perm())
	}
	if got := readNote(t, backup); got != "backup" {
		t.Errorf("the backup has the note %q", got)
	}
	changeNote(t, path, "new") // the restored database can be written
	second, err := database.Restore(t.Context(), path, backup)
	must(t, err)
	if second.Previous == r.Previous || readNote(t, second.Previous) != "new" || readNote(t, r.Previous) != "later" {
		t.Errorf("two restores keep %s and %s, want two databases", r.Previous, second.Previous)
	}
	if names := listFiles(t, filepath.Dir(path)); len(names) != 5 { // with the lock and the time of the last backup
		t.Errorf("the folder has %v, want the database, its lock, the time of the last backup and two kept databases", names)
	}
}

func TestRestoreReadsTheBackupFromAStream(t *testing.T) {
	path, backup := createBackup(t, "stream")
	changeNote(t, path, "later")
	content, err := os.ReadFile(backup)
	must(t, err)
	_, err = database.RestoreFrom(t.Context(), path, bytes.NewReader(content))
	must(t, err)
	if got := readNote(t, path); got != "stream" {
		t.Errorf("the restored database has the note %q", got)
	}
	var stream bytes.Buffer
	contents, err := database.BackupTo(t.Context(), path, t.TempDir(), &stream)
	must(t, err)
	if int64(stream.Len()) != contents.Bytes || !strings.HasPrefix(stream.String(), "SQLite format 3\x00") {
		t.Errorf("a backup to a stream has %d bytes, want the %d of a database", stream.Len(), contents.Bytes)
	}
}

// SQLite would apply the write-ahead log of a database that a crash has left to the file that takes its place.
func TestRestoreAfterACrashMixesNoWriteAheadLog(t *testing.T) {
	path, backup := createBackup(t, "backup")
	crashed := filepath.Join(t.TempDir(), "crashed.db")
	db := open(t, path)
	must(t, db.WriteExclusive(t.Context(), execute("UPDATE notes SET text = 'in the log'")))
	for _, suffix := range []string{"", "-wal"} { // as a crash leaves them: the log is not written back
		content, err := os.ReadFile(path + suffix)
		must(t, err)
		must(t, os.WriteFile(crashed+suffix, content, 0o600))
	}
	r, err := database.Restore(t.Context(), crashed, backup)
	must(t, err)
	if got := readNote(t, crashed); got != "backup" {
		t.Errorf("the restored database has the note %q", got)
	}
	if got := readNote(t, r.Previous); got != "in the log" {
		t.Errorf("the kept database has the note %q, want that of its log", got)
	}
	for _, suffix := range []string{"", "-wal"} { // such a pair of files is a backup too
		content, err := os.ReadFile(path + suffix)
		must(t, err)
		must(t, os.WriteFile(backup+".raw"+suffix, content, 0o600))
	}
	_, err = database.Restore(t.Context(), crashed, backup+".raw")
	must(t, err)
	if got := readNote(t, crashed); got != "in the log" {
		t.Errorf("restored from a database with its log: the note %q", got)
	}
}

// A damaged database is what a restore replaces, so it must not hinder it.
func TestRestoreReplacesADamagedDatabase(t *testing.T) {
	path, backup := createBackup(t, "backup")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		must(t, os.WriteFile(path+suffix, bytes.Repeat([]byte("damaged "), 1000), 0o600))
	}
	r, err := database.Restore(t.Context(), path, backup)
	must(t, err)
	if got := readNote(t, path); got != "backup" {
		t.Errorf("the restored database has the note %q", got)
	}
	content, err := os.ReadFile(r.Previous)
	if err != nil || !bytes.HasPrefix(content, []byte("damaged ")) {
		t.Errorf("the kept file has %d bytes (error %v), want the damaged database", len(content), err)
	}
}

func TestRestoreRefusesWhileADatabaseIsServed(t *testing.T) {
	t.Parallel()
	path, backup := createBackup(t, "backup")
	changeNote(t, path, "served")
	lock, err := database.Acquire(t.Context(), path, "serves as a gateway")
	must(t, err)
	defer lock.Release()
	_, err = database.Restore(t.Context(), path, backup)
	if locked := new(database.LockedError); !errors.As(err, &locked) || !strings.Contains(err.Error(), "serves as a gateway") {
		t.Errorf("got error %v, want a LockedError that names the gateway", err)
	}
	if got := readNote(t, path); got != "served" {
		t.Errorf("the database has the note %q", got)
	}
}

// A refused backup changes nothing.
func TestRestoreRefusesAnUnusableBackup(t *testing.T) {
	path, good := createBackup(t, "present")
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		file := filepath.Join(dir, name)
		must(t, os.WriteFile(file, content, 0o600))
		return file
	}
	change := func(name, statement string) string {
		content, err := os.ReadFile(good)
		must(t, err)
		file := write(name, content)
		db, err := sql.Open("sqlite3", "file:"+file)
		must(t, err)
		_, err = db.Exec(statement)
		must(t, err)
		must(t, db.Close())
		return file
	}
	content, err := os.ReadFile(good)
	must(t, err)
	flipped := bytes.Clone(content)
	copy(flipped[4096*3:], bytes.Repeat([]byte{0xff}, 4096)) // one page
	newer := change("newer.db", "INSERT INTO schema_migrations (version_id, is_applied) VALUES (9999, 1)")
	for file, want := range map[string]error{
		write("text.db", []byte(strings.Repeat("not a database\n", 1000))): database.ErrDamaged,
		write("empty.db", nil):                             database.ErrUnknownContent,
		write("truncated.db", content[:len(content)/2]):    database.ErrDamaged,
		write("flipped.db", flipped):                       database.ErrDamaged,
		change("other.db", "DROP TABLE schema_migrations"): database.ErrUnknownContent,
		newer:                            database.ErrNewer,
		filepath.Join(dir, "missing.db"): os.ErrNotExist,
		path:                             nil, // the database itself
	} {
		if _, err := database.Restore(t.Context(), path, file); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: got error %v, want %v", filepath.Base(file), err, want)
		}
	}
	if got := readNote(t, path); got != "present" {
		t.Errorf("the database has the note %q", got)
	}
	if names := listFiles(t, filepath.Dir(path)); len(names) != 3 {
		t.Errorf("the folder has %v, want the database, its lock and the time of the last backup", names)
	}
}

// Commands run as root must not leave files that the gateway's user cannot open.
func TestRestoreByRootKeepsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	path, backup := createBackup(t, "backup")
	for _, file := range []string{path, filepath.Dir(path)} {
		must(t, os.Chown(file, 65532, 65532))
	}
	_, err := database.Restore(t.Context(), path, backup)
	must(t, err)
	for _, file := range []string{path, path + ".lock"} {
		if uid := ownerOf(t, file); uid != 65532 {
			t.Errorf("%s belongs to user %d, want 65532", filepath.Base(file), uid)
		}
	}
}

func TestBackupOfADamagedDatabaseFails(t *testing.T) {
	path, _ := createBackup(t, "present")
	content, err := os.ReadFile(path)
	must(t, err)
	copy(content[4096*3:], bytes.Repeat([]byte{0xff}, 4096*3))
	must(t, os.WriteFile(path, content, 0o600))
	to := filepath.Join(t.TempDir(), "copy.db")
	if _, err := database.Backup(t.Context(), path, to); err == nil {
		t.Error("no error")
	}
	if names := listFiles(t, filepath.Dir(to)); len(names) != 0 {
		t.Errorf("the target folder has %v, want nothing", names)
	}
	if _, err := database.Backup(t.Context(), path+".missing", to); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing database: got error %v", err)
	}
}

func ownerOf(t *testing.T, path string) uint32 {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.Sys().(*syscall.Stat_t).Uid
}
