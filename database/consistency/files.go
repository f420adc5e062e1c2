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

// Files checks the rows of files against the storage.
type Files struct {
	db    *database.DB
	store storage.Store
	audit *identity.AuditLog
}

// NewFiles returns the check of a database's files. Repairs are recorded in the audit log.
func NewFiles(db *database.DB, store storage.Store, audit *identity.AuditLog) *Files {
	return &Files{db: db, store: store, audit: audit}
}

// prompt is the kind of a saved prompt.
const prompt = "saved prompt"

// lostFile is a file or a saved prompt whose bytes are not in the storage.
type lostFile struct {
	kind, id  string
	object    string // of a saved prompt
	expiresAt int64  // of a file
	text      string
}

// comparison is the result of comparing files with their objects.
type comparison struct {
	lost    []lostFile
	unused  []string // objects with a row that neither a file nor a prompt has
	orphans []string // objects without a row
	bytes   int64    // of the orphans
	ours    bool     // the storage has an object of this database
	storage string   // the object by which gateways recognize their storage, if it is not there
}

// errStorageMismatch is returned by Repair if the files would all be lost because the storage is not theirs.
var errStorageMismatch = errors.New("the storage is not the one that the gateways use: correct files.url, or mount its folder")

// objectName matches the names that package batch gives to objects. A folder may have files of others.
var objectName = regexp.MustCompile(`^[a-z2-7]{26}$`)

// Check compares the rows of files with the storage, in which the names of objects are secret.
func (f *Files) Check(ctx context.Context, report func(Problem)) error {
	all, err := f.compare(ctx)
	if err != nil {
		return fmt.Errorf("check files: %w", err)
	}
	if all.storage != "" {
		report(Problem{Part: "files", Text: errStorageMismatch.Error()})
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
// bytes are lost, and deletes objects that belong to neither. It reports what it did. If nothing shows that the storage is the
// database's, it deletes no prompt, and no object without a row.
func (f *Files) Repair(ctx context.Context, report func(string)) error {
	all, err := f.compare(ctx)
	if err != nil {
		return fmt.Errorf("check files: %w", err)
	}
	if all.storage != "" {
		return fmt.Errorf("repair files: %w", errStorageMismatch)
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
		return err
	}
	report("files: " + l.id + " " + done + ", and the audit log names it")
	return nil
}

// compare reads the rows of files before it lists the storage, and those of objects after it, so that what is created meanwhile is
// neither lost nor an orphan.
func (f *Files) compare(ctx context.Context) (all comparison, err error) {
	files, err := f.files(ctx)
	if err != nil {
		return all, err
	}
	sizes := map[string]int64{}
	err = f.store.List(ctx, func(name string, size int64) error {
		sizes[name] = size
		return nil
	})
	if err != nil {
		return all, err
	}
	all.lost = lostFiles(files, sizes)
	rows, err := f.compareObjects(ctx, sizes, &all)
	if err != nil {
		return all, err
	}
	for name, size := range sizes {
		if rows[name] || !objectName.MatchString(name) {
			continue
		}
		reader, err := f.store.Open(ctx, name, 0, 1)
		switch {
		case errors.Is(err, storage.ErrNotFound): // deleted meanwhile, with its row
		case err != nil:
			return all, err
		default:
			_ = reader.Close() // nothing was read
			all.orphans, all.bytes = append(all.orphans, name), all.bytes+size
		}
	}
	return all, nil
}

// storedFile is a file or a saved prompt with the sizes of its objects.
type storedFile struct {
	kind, id, account string
	bytes, expiresAt  int64
	objects           map[string]int64
}

// files returns all files and saved prompts with their objects.
func (f *Files) files(ctx context.Context) (all []storedFile, err error) {
	rows, err := f.db.Read().QueryContext(ctx, `
		SELECT 'file', f.id, f.account_id, f.bytes, f.expires_at, coalesce(o.name, ''), coalesce(o.bytes, 0)
		FROM files f LEFT JOIN objects o ON o.file = f.id AND o.state = 'kept'
		UNION ALL SELECT 'saved prompt', id, account_id, document_bytes, 0, object, document_bytes FROM prompts WHERE object <> ''
		ORDER BY 1, 2`)
	if err != nil {
		return nil, fmt.Errorf("read files: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		s := storedFile{objects: map[string]int64{}}
		var object string
		var bytes int64
		if err := rows.Scan(&s.kind, &s.id, &s.account, &s.bytes, &s.expiresAt, &object, &bytes); err != nil {
			return nil, fmt.Errorf("read files: %w", err)
		}
		if n := len(all); n == 0 || all[n-1].id != s.id {
			all = append(all, s)
		}
		all[len(all)-1].objects[object] = bytes
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read files: %w", err)
	}
	return all, nil
}

// lostFiles returns the files whose objects are missing or too short.
func lostFiles(files []storedFile, sizes map[string]int64) (lost []lostFile) {
	for _, f := range files {
		stored, object := int64(0), ""
		for name, bytes := range f.objects {
			stored, object = stored+min(bytes, sizes[name]), name
		}
		text := fmt.Sprintf("%s %s of account %s: %d of its %d bytes are in the storage", f.kind, f.id, f.account, stored, f.bytes)
		switch {
		case stored >= f.bytes:
			continue
		case stored == 0:
			text = fmt.Sprintf("%s %s of account %s: its %d bytes are not in the storage", f.kind, f.id, f.account, f.bytes)
		}
		lost = append(lost, lostFile{f.kind, f.id, object, f.expiresAt, text})
	}
	return lost
}

// compareObjects finds the objects that belong to no file, and returns which objects have a row.
func (f *Files) compareObjects(ctx context.Context, sizes map[string]int64, all *comparison) (rowed map[string]bool, err error) {
	rows, err := f.db.Read().QueryContext(ctx, `SELECT name, file = 'storage', state = 'kept' AND file NOT IN (SELECT id FROM files)
		AND name NOT IN (SELECT errors FROM batches WHERE errors IS NOT NULL)
		AND name NOT IN (SELECT object FROM prompts) FROM objects`)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	defer rows.Close()
	rowed = map[string]bool{}
	for rows.Next() {
		var name string
		var ofStorage, unused bool
		if err := rows.Scan(&name, &ofStorage, &unused); err != nil {
			return nil, fmt.Errorf("read objects: %w", err)
		}
		_, exists := sizes[name]
		rowed[name] = true
		all.ours = all.ours || exists
		switch {
		case ofStorage && unused && !exists:
			all.storage = name
		case unused && !ofStorage:
			all.unused = append(all.unused, name)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return rowed, nil
}
