package consistency

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"basegate/batch/storage"
	"basegate/database"
	"basegate/identity"
)

// Files checks the rows of files and of saved prompts against the storage.
type Files struct {
	db    *database.DB
	store storage.Store
	audit *identity.AuditLog
}

// NewFiles returns the check of a database's files. Repairs are recorded in the audit log.
func NewFiles(db *database.DB, store storage.Store, audit *identity.AuditLog) *Files {
	return &Files{db: db, store: store, audit: audit}
}

// errNoList is returned for a store that cannot list its objects.
var errNoList = errors.New("the storage of files cannot be listed")

// lostFile is a file or a saved prompt whose bytes are not in the storage.
type lostFile struct {
	kind, id, account string
	object            string
	expiresAt         int64 // of a file
	text              string
}

// prompt is the kind of a saved prompt.
const prompt = "saved prompt"

// comparison is the result of comparing files with their objects.
type comparison struct {
	lost    []lostFile
	unused  []string // objects with a row that no file has
	orphans []string // objects without a row
	bytes   int64    // of the orphans
	ours    bool     // the storage has an object of this database
	marker  string   // the object by which gateways recognize their storage, if it is not there
}

// errOtherStorage is returned by Repair if the files would all be lost because the storage is not theirs.
var errOtherStorage = errors.New("the storage is not the one that the gateways use: correct files.url, or mount its folder")

// objectName matches the names that package batch gives to objects. A folder may have files of others.
var objectName = regexp.MustCompile(`^[a-z2-7]{26}(-[0-9a-f]+)?$`)

// Check compares the rows of files with the storage, in which the names of objects are secret.
func (f *Files) Check(ctx context.Context, report func(Problem)) error {
	all, err := f.compare(ctx)
	if err != nil {
		return fmt.Errorf("check files: %w", err)
	}
	if all.marker != "" {
		report(Problem{Part: "files", Text: errOtherStorage.Error()})
	}
	for _, l := range all.lost {
		p := Problem{Part: "files", Text: l.text}
		if l.expiresAt == markedLost {
			p.Text, p.Note = p.Text+"; it is marked as lost", true
		}
		report(p)
	}
	if n := len(all.unused); n > 0 {
		report(Problem{Part: "files", Text: fmt.Sprintf("%d objects belong to no file", n)})
	}
	if n := len(all.orphans); n > 0 {
		report(Problem{Part: "files", Text: fmt.Sprintf("%d objects of %d bytes are in the storage without a row, as after the restore of an older database", n, all.bytes)})
	}
	return nil
}

// Repair expires files whose bytes are lost, so that their users get the error of an expired file, deletes saved prompts whose
// bytes are lost, and deletes objects that belong to neither. It reports what it did. If nothing shows that the storage is the database's, it deletes no object
// without a row.
func (f *Files) Repair(ctx context.Context, report func(string)) error {
	all, err := f.compare(ctx)
	if err != nil {
		return fmt.Errorf("check files: %w", err)
	}
	if all.marker != "" {
		return fmt.Errorf("repair files: %w", errOtherStorage)
	}
	for _, l := range all.lost {
		if l.expiresAt == markedLost {
			continue
		}
		if l.kind == prompt && !all.ours {
			report("files: " + l.text + "; it is left, since the storage has no object of this database")
			continue
		}
		if err := f.giveUp(ctx, &l, report); err != nil {
			return err
		}
	}
	for _, name := range all.unused {
		err := f.db.WriteExclusive(ctx, func(tx database.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE objects SET state = 'deleted' WHERE name = $1 AND state = 'kept'`, name)
			return err
		})
		if err != nil {
			return fmt.Errorf("mark objects as deleted: %w", err)
		}
	}
	if n := len(all.unused); n > 0 {
		report(fmt.Sprintf("files: %d objects that belong to no file will be deleted by a gateway", n))
	}
	return f.deleteOrphans(ctx, &all, report)
}

// deleteOrphans deletes objects without a row, unless they may belong to another database.
func (f *Files) deleteOrphans(ctx context.Context, all *comparison, report func(string)) error {
	n := len(all.orphans)
	switch {
	case n == 0:
		return nil
	case !all.ours:
		report(fmt.Sprintf("files: %d objects of %d bytes without a row are left: the storage has no object of this database, so it may be another one's", n, all.bytes))
		return nil
	}
	for _, name := range all.orphans {
		if err := f.store.Delete(ctx, name); err != nil {
			return fmt.Errorf("delete objects without a row: %w", err)
		}
	}
	report(fmt.Sprintf("files: %d objects of %d bytes without a row are deleted", n, all.bytes))
	return nil
}

// markedLost is the expiry of a file that is marked as lost: a second after the epoch.
const markedLost = 1

// giveUp lets a lost file expire at once, so that a gateway deletes its row, or deletes a lost prompt, and records it.
func (f *Files) giveUp(ctx context.Context, l *lostFile, report func(string)) error {
	action, done := "mark file as lost", "is marked as lost: it has expired"
	if l.kind == prompt {
		action, done = "delete lost prompt", "is lost: it is deleted"
	}
	err := f.db.WriteExclusive(ctx, func(tx database.Tx) error {
		if l.kind != prompt {
			_, err := tx.ExecContext(ctx, `UPDATE files SET expires_at = $2 WHERE id = $1`, l.id, markedLost)
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE objects SET state = 'deleted' WHERE name = $1`, l.object); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM prompts WHERE id = $1 AND object = $2`, l.id, l.object)
		return err
	})
	if err != nil {
		return fmt.Errorf("give up %s %s: %w", l.kind, l.id, err)
	}
	if err := f.audit.Record(ctx, action, l.id, l.text); err != nil {
		return err //nolint:wrapcheck // it says what failed
	}
	report("files: " + l.id + " " + done + ", and the audit log names it")
	return nil
}

// compare lists the storage first, so that an object that is created meanwhile has its row.
func (f *Files) compare(ctx context.Context) (all comparison, err error) {
	lister, ok := f.store.(storage.Lister)
	if !ok {
		return all, errNoList
	}
	sizes := map[string]int64{}
	err = lister.List(ctx, func(name string, size int64) error {
		sizes[name] = size
		return nil
	})
	if err != nil {
		return all, err //nolint:wrapcheck // it says what failed
	}
	used, err := f.compareFiles(ctx, sizes, &all)
	if err != nil {
		return all, err
	}
	rows, err := f.objects(ctx)
	if err != nil {
		return all, err
	}
	for name, state := range rows {
		if _, exists := sizes[name]; exists {
			all.ours = true
		}
		if state == "kept" && !used[name] {
			all.unused = append(all.unused, name)
		}
	}
	for name, size := range sizes {
		if _, hasRow := rows[name]; hasRow || used[name] || !objectName.MatchString(name) {
			continue
		}
		reader, err := f.store.Open(ctx, name, 0, 0)
		switch {
		case errors.Is(err, storage.ErrNotFound): // deleted meanwhile, with its row
		case err != nil:
			return all, err //nolint:wrapcheck // it says what failed
		default:
			_ = reader.Close() // nothing was read
			all.orphans, all.bytes = append(all.orphans, name), all.bytes+size
		}
	}
	return all, nil
}

// compareFiles finds files and saved prompts whose objects are missing or too short, and returns the names of all objects in
// use.
func (f *Files) compareFiles(ctx context.Context, sizes map[string]int64, all *comparison) (used map[string]bool, err error) {
	used = map[string]bool{}
	rows, err := f.db.Read().QueryContext(ctx, `
		SELECT 'file', id, account_id, object, bytes, expires_at FROM files
		UNION ALL SELECT 'saved prompt', id, account_id, object, document_bytes, 0 FROM prompts
		ORDER BY 1, 2`)
	if err != nil {
		return nil, fmt.Errorf("read files: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var l lostFile
		var bytes int64
		if err := rows.Scan(&l.kind, &l.id, &l.account, &l.object, &bytes, &l.expiresAt); err != nil {
			return nil, fmt.Errorf("read files: %w", err)
		}
		if l.object == "" {
			continue
		}
		used[l.object] = true
		size, exists := sizes[l.object]
		switch {
		case bytes == 0 || size >= bytes:
			continue
		case !exists:
			l.text = fmt.Sprintf("%s %s of account %s: its %d bytes are not in the storage", l.kind, l.id, l.account, bytes)
		default:
			l.text = fmt.Sprintf("%s %s of account %s: %d of its %d bytes are in the storage", l.kind, l.id, l.account, size, bytes)
		}
		all.lost = append(all.lost, l)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read files: %w", err)
	}
	return used, f.addParts(ctx, used, sizes, all)
}

// addParts adds the objects that gateways on PostgreSQL use and no row of files names: parts of files that grow, and the one by
// which they recognize their storage.
func (f *Files) addParts(ctx context.Context, used map[string]bool, sizes map[string]int64, all *comparison) error {
	if f.db.Postgres() == nil {
		return nil
	}
	rows, err := f.db.Read().QueryContext(ctx, `SELECT object, false FROM file_parts UNION ALL SELECT object, true FROM storage_marker`)
	if err != nil {
		return fmt.Errorf("read parts of files: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var object string
		var isMarker bool
		if err := rows.Scan(&object, &isMarker); err != nil {
			return fmt.Errorf("read parts of files: %w", err)
		}
		used[object] = true
		if _, exists := sizes[object]; isMarker && !exists {
			all.marker = object
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read parts of files: %w", err)
	}
	return nil
}

// objects returns the states of all objects by their names.
func (f *Files) objects(ctx context.Context) (map[string]string, error) {
	rows, err := f.db.Read().QueryContext(ctx, `SELECT name, state FROM objects`)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	defer rows.Close()
	states := map[string]string{}
	for rows.Next() {
		var name, state string
		if err := rows.Scan(&name, &state); err != nil {
			return nil, fmt.Errorf("read objects: %w", err)
		}
		states[name] = state
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return states, nil
}
