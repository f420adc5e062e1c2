package consistency

import (
	"context"
	"database/sql"
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

// storedFile is a file or a saved prompt with the sizes of its objects.
type storedFile struct {
	kind, id, account string
	bytes, expiresAt  int64
	objects           map[string]int64
	stored            int64 // bytes that are in the storage
}

// comparison is the result of comparing files with their objects.
type comparison struct {
	lost     []storedFile // whose bytes are not all in the storage
	unused   int          // objects with a row that neither a file nor a prompt has
	orphans  []string     // objects without a row
	bytes    int64        // of the orphans
	ours     bool         // the storage has an object of this database
	mismatch bool         // the storage lacks the object by which gateways recognize it
}

// isUnused is the condition for an object that counts and that neither a file nor a batch nor a prompt nor a kept response has. One of
// a response may be missing: that is then a miss.
const isUnused = `state = 'kept' AND file <> 'storage' AND file NOT IN (SELECT id FROM files)
	AND name NOT IN (SELECT errors FROM batches WHERE errors IS NOT NULL)
	AND name NOT IN (SELECT object FROM prompts) AND name NOT IN (SELECT object FROM replays)`

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
	if all.mismatch {
		report(Problem{Part: "files", Text: errStorageMismatch.Error()})
	}
	for _, l := range all.lost {
		p := Problem{Part: "files", Text: l.text()}
		switch {
		case l.kind == prompt:
			p.Text, p.Note = p.Text+"; "+promptAdvice, true
		case l.expiresAt == markedLost:
			p.Text, p.Note = p.Text+"; it is marked as lost", true
		}
		report(p)
	}
	if all.unused > 0 {
		report(Problem{Part: "files", Text: fmt.Sprintf("%d objects belong to no file", all.unused)})
	}
	if n := len(all.orphans); n > 0 {
		report(Problem{Part: "files", Text: fmt.Sprintf("%d objects of %d bytes are in the storage without a row, as after the restore of an older database", n, all.bytes)})
	}
	return nil
}

// promptAdvice says what is to be done about a version of a prompt that is lost. A repair leaves it: an administrator may still put its object
// back.
const promptAdvice = "put its object back, or delete it in the workbench"

// Repair expires files whose bytes are lost, so that their users get the error of an expired file, and deletes objects that belong
// to neither a file nor a prompt. It reports what it did, and the prompts that are lost. If nothing shows that the storage is the
// database's, it deletes no object without a row.
func (f *Files) Repair(ctx context.Context, report func(string)) error {
	all, err := f.compare(ctx)
	if err != nil {
		return fmt.Errorf("check files: %w", err)
	}
	if all.mismatch {
		return fmt.Errorf("repair files: %w", errStorageMismatch)
	}
	for _, l := range all.lost {
		switch {
		case l.kind == prompt:
			report("files: " + l.text() + "; it is left: " + promptAdvice)
		case l.expiresAt != markedLost:
			if err := f.markLost(ctx, &l, report); err != nil {
				return err
			}
		}
	}
	n, err := f.update(ctx, `UPDATE objects SET state = 'deleted' WHERE `+isUnused)
	if err != nil {
		return fmt.Errorf("mark objects as deleted: %w", err)
	}
	if n > 0 {
		report(fmt.Sprintf("files: %d objects that belong to no file will be deleted by a gateway", n))
	}
	return f.deleteOrphans(ctx, &all, report)
}

// update changes rows and returns how many.
func (f *Files) update(ctx context.Context, text string, args ...any) (n int64, err error) {
	err = f.db.WriteExclusive(ctx, func(tx database.Tx) error {
		n, err = database.Change(ctx, tx, text, args...)
		return err
	})
	return n, err
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

// markLost lets a lost file expire at once, so that a gateway deletes its row, and records it.
func (f *Files) markLost(ctx context.Context, l *storedFile, report func(string)) error {
	n, err := f.update(ctx, `UPDATE files SET expires_at = $2 WHERE id = $1 AND expires_at <> $2`, l.id, markedLost)
	if err != nil {
		return fmt.Errorf("mark %s as lost: %w", l.id, err)
	}
	if n == 0 { // deleted meanwhile
		return nil
	}
	if err := f.audit.Record(ctx, "mark file as lost", l.id, l.text()); err != nil {
		return err
	}
	report("files: " + l.id + " is marked as lost: it has expired, and the audit log names it")
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
	for _, file := range files {
		for name, bytes := range file.objects {
			file.stored += min(bytes, sizes[name])
		}
		if file.stored < file.bytes {
			all.lost = append(all.lost, file)
		}
	}
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

// files returns all files and saved prompts with their objects.
func (f *Files) files(ctx context.Context) (all []storedFile, err error) {
	err = database.Each(ctx, f.db.Read(), func(rows *sql.Rows) error {
		s := storedFile{objects: map[string]int64{}}
		var object string
		var bytes int64
		if err := rows.Scan(&s.kind, &s.id, &s.account, &s.bytes, &s.expiresAt, &object, &bytes); err != nil {
			return err
		}
		if n := len(all); n == 0 || all[n-1].id != s.id {
			all = append(all, s)
		}
		all[len(all)-1].objects[object] = bytes
		return nil
	}, `SELECT 'file', f.id, f.account_id, f.bytes, f.expires_at, coalesce(o.name, ''), coalesce(o.bytes, 0)
		FROM files f LEFT JOIN objects o ON o.file = f.id AND o.state = 'kept'
		UNION ALL SELECT 'saved prompt', id || ' version ' || version, account_id, document_bytes, 0, object, document_bytes FROM prompts WHERE object <> ''
		ORDER BY 1, 2`)
	if err != nil {
		return nil, fmt.Errorf("read files: %w", err)
	}
	return all, nil
}

// text says which bytes of a lost file are missing.
func (s *storedFile) text() string {
	text := fmt.Sprintf("%s %s of account %s: ", s.kind, s.id, s.account)
	if s.stored == 0 {
		return text + fmt.Sprintf("its %d bytes are not in the storage", s.bytes)
	}
	return text + fmt.Sprintf("%d of its %d bytes are in the storage", s.stored, s.bytes)
}

// compareObjects counts the objects that belong to no file, and returns which objects have a row.
func (f *Files) compareObjects(ctx context.Context, sizes map[string]int64, all *comparison) (rowed map[string]bool, err error) {
	rowed = map[string]bool{}
	err = database.Each(ctx, f.db.Read(), func(rows *sql.Rows) error {
		var name string
		var ofStorage, unused bool
		if err := rows.Scan(&name, &ofStorage, &unused); err != nil {
			return err
		}
		_, exists := sizes[name]
		rowed[name] = true
		all.ours = all.ours || exists
		all.mismatch = all.mismatch || ofStorage && !exists
		if unused {
			all.unused++
		}
		return nil
	}, `SELECT name, file = 'storage' AND state = 'kept', `+isUnused+` FROM objects`)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return rowed, nil
}
