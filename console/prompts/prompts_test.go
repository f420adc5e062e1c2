package prompts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"basegate/batch"
	"basegate/batch/storage"
	"basegate/console/prompts"
	"basegate/database"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(databasetest.Main{M: m}) }

const (
	ada = "acc_ada"
	eve = "acc_eve"

	quota = 100 << 20
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// fixture is a Store on a new database with the accounts ada and eve. Its objects are those of a Service of batches, which is
// not started and so deletes no objects.
type fixture struct {
	*prompts.Store
	t       testing.TB
	db      *database.DB
	path    string
	files   storage.Store
	batches *batch.Service
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "base.db")
	db, err := database.Open(tb.Context(), databasetest.Settings(tb, path), zap.NewNop())
	must(tb, err)
	tb.Cleanup(func() { db.Close() })
	f := &fixture{t: tb, db: db, path: path}
	f.files, err = storage.OpenDisk(path + ".files")
	must(tb, err)
	tb.Cleanup(func() { f.files.Close() })
	f.batches = batch.New(db, f.files, nil, batch.Settings{}, zap.NewNop())
	f.Store = prompts.New(db, f.batches, quota)
	for _, account := range []string{ada, eve} {
		f.execute(`INSERT INTO accounts (id, email, name, admin, state, created_at) VALUES ($1, $1, '', false, 'active', 1)`, account)
	}
	return f
}

// execute runs a statement on the database.
func (f *fixture) execute(text string, args ...any) {
	f.t.Helper()
	must(f.t, f.db.WriteGrouped(f.t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(context.Background(), text, args...)
		return err
	}))
}

// count returns the number of rows of a table.
func (f *fixture) count(table string) (n int) {
	f.t.Helper()
	must(f.t, f.db.Read().QueryRow("SELECT count(*) FROM "+table).Scan(&n))
	return n
}

// wantKept checks how many objects count.
func (f *fixture) wantKept(what string, objects int) {
	f.t.Helper()
	if got := f.count("objects WHERE state = 'kept'"); got != objects {
		f.t.Errorf("%s: got %d objects that count, want %d", what, got, objects)
	}
}

// wantSwept checks that only the objects that count are in the storage, once a gateway has swept. The rows of the others go later.
func (f *fixture) wantSwept(what string, objects int) {
	f.t.Helper()
	f.wantKept(what, objects)
	must(f.t, f.batches.Start(f.t.Context()))
	defer f.batches.Close()
	poll.Until(f.t, what+": the objects that do not count are deleted", func() bool {
		left, err := os.ReadDir(f.path + ".files")
		must(f.t, err)
		return len(left) == objects
	})
}

// document returns a document of a size in bytes whose text repeats a word.
func document(word string, size int) []byte {
	const begin, end = `{"tree":{"nodes":[{"text":"`, `"}]}}`
	text := strings.Repeat(word+" ", size/(len(word)+1)+1)[:size-len(begin)-len(end)]
	return []byte(begin + text + end)
}

func draft(name string, document []byte) prompts.Draft {
	return prompts.Draft{Name: name, Model: "llama-8b", Document: document}
}

// create saves a prompt of ada.
func (f *fixture) create(name string, document []byte) prompts.Prompt {
	f.t.Helper()
	p, err := f.Create(f.t.Context(), ada, draft(name, document))
	must(f.t, err)
	return p
}

// names returns the names of ada's prompts that contain all words.
func (f *fixture) names(words ...string) string {
	f.t.Helper()
	found, _, err := f.Search(f.t.Context(), ada, words, 100)
	must(f.t, err)
	var names []string
	for _, p := range found {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

func TestDocumentsOfEverySizeAreReadAsSaved(t *testing.T) {
	for name, where := range map[string]func(*fixture) storage.Objects{
		"objects": func(f *fixture) storage.Objects { return f.batches },
		"rows":    func(*fixture) storage.Objects { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.Store = prompts.New(f.db, where(f), quota)
			for _, size := range []int{40, 1000, 64 << 10, 4 << 20} {
				want := document("word", size)
				p := f.create(fmt.Sprint("of ", size), want)
				got, read, err := f.Get(t.Context(), ada, p.ID)
				must(t, err)
				if got != p || !bytes.Equal(read, want) {
					t.Errorf("%d bytes: got %+v and %d bytes, want %+v and the same document", size, got, len(read), p)
				}
				if p.Bytes < int64(size) {
					t.Errorf("%d bytes: the prompt counts as %d bytes, want at least the document", size, p.Bytes)
				}
				if inRow := f.count("prompts WHERE document IS NOT NULL") == 1; inRow != (name == "rows") {
					t.Errorf("%d bytes: the row has the document: %t", size, inRow)
				}
				must(t, f.Delete(t.Context(), ada, p.ID))
			}
			f.wantKept("after the deletions", 0)
		})
	}
}

// An operator who configures a storage later keeps what is in rows.
func TestDocumentInARowIsMovedToTheStorageWhenItIsSaved(t *testing.T) {
	f := newFixture(t)
	objects := f.Store
	f.Store = prompts.New(f.db, nil, quota)
	p := f.create("study", document("first", 1000))
	f.Store = objects
	_, read, err := f.Get(t.Context(), ada, p.ID)
	must(t, err)
	if !bytes.Equal(read, document("first", 1000)) {
		t.Errorf("got %d bytes, want the document of the row", len(read))
	}
	_, err = f.Update(t.Context(), ada, p.ID, 1, draft("study", document("second", 1000)))
	must(t, err)
	_, read, err = f.Get(t.Context(), ada, p.ID)
	must(t, err)
	if !bytes.Equal(read, document("second", 1000)) || f.count("prompts WHERE latest AND document IS NOT NULL") != 0 {
		t.Errorf("got %d bytes, want the second document, in an object", len(read))
	}
	_, read, err = f.GetVersion(t.Context(), ada, p.ID, 1)
	must(t, err)
	if !bytes.Equal(read, document("first", 1000)) {
		t.Errorf("got %d bytes of the first version, want the document of the row", len(read))
	}
	f.wantKept("after the update", 1) // the first version is still in its row
}

// The document of a prompt that is replaced between the reads of its row and of its object is that of the new row.
func TestDocumentThatIsReplacedWhileItIsReadIsReadAgain(t *testing.T) {
	f := newFixture(t)
	p := f.create("study", document("first", 1000))
	reader := prompts.New(f.db, &replacing{f.batches, func(name string) {
		_, err := f.Update(t.Context(), ada, p.ID, 1, draft("study", document("second", 2000)))
		must(t, err)
		must(t, f.files.Delete(t.Context(), name))
	}}, 0)
	got, read, err := reader.Get(t.Context(), ada, p.ID)
	must(t, err)
	if got.Version != 2 || !bytes.Equal(read, document("second", 2000)) {
		t.Errorf("got version %d with %d bytes, want the second with its document", got.Version, len(read))
	}
}

// replacing replaces an object when it is first opened.
type replacing struct {
	storage.Objects
	replace func(name string)
}

func (r *replacing) ReadObject(ctx context.Context, name string, size int64) ([]byte, error) {
	if replace := r.replace; replace != nil {
		r.replace = nil
		replace(name)
	}
	return r.Objects.ReadObject(ctx, name, size)
}

func TestDocumentThatIsLostIsAnError(t *testing.T) {
	f := newFixture(t)
	p := f.create("study", document("first", 1000))
	names, err := filepath.Glob(f.path + ".files/*")
	must(t, err)
	must(t, os.Truncate(names[0], 10))
	if _, _, err := f.Get(t.Context(), ada, p.ID); err == nil {
		t.Error("10 of 1000 bytes were read as the document")
	}
	must(t, os.Remove(names[0]))
	if _, _, err := f.Get(t.Context(), ada, p.ID); err == nil || errors.Is(err, prompts.ErrNotFound) {
		t.Errorf("got %v, want that the document cannot be read", err)
	}
	must(t, f.Delete(t.Context(), ada, p.ID))
}

func TestUpdateMakesAVersionWhoseTextIsFound(t *testing.T) {
	f := newFixture(t)
	p := f.create("study", document("first", 1<<20))
	for i, d := range [][]byte{document("second", 300<<10), document("third", 100), document("fourth", 200<<10)} {
		version, err := f.Update(t.Context(), ada, p.ID, int64(i+1), draft("study", d))
		must(t, err)
		got, read, err := f.Get(t.Context(), ada, p.ID)
		must(t, err)
		if version != int64(i+2) || got.Version != version || !bytes.Equal(read, d) {
			t.Errorf("update %d: got version %d, %+v and %d bytes", i+1, version, got, len(read))
		}
	}
	if f.names("fourth") != "study" || f.names("first") != "" || f.names("second") != "" {
		t.Error("a search does not find the last text only")
	}
	f.wantSwept("after the updates", 4)
	must(t, f.Delete(t.Context(), ada, p.ID))
	f.wantSwept("after the deletion", 0)
}

// versions returns the numbers of the versions of a prompt of ada, and checks the document of each.
func (f *fixture) versions(id string) (numbers []int64) {
	f.t.Helper()
	all, err := f.Versions(f.t.Context(), ada, id)
	must(f.t, err)
	for _, v := range all {
		got, read, err := f.GetVersion(f.t.Context(), ada, id, v.Version)
		must(f.t, err)
		if got != v || !bytes.Equal(read, document(fmt.Sprint("text", v.Version), 1000)) {
			f.t.Errorf("version %d: got %+v and %.40s, want %+v and its document", v.Version, got, read, v)
		}
		numbers = append(numbers, v.Version)
	}
	return numbers
}

// update saves the next version of a prompt of ada that has been saved n-1 times.
func (f *fixture) update(id string, n int64) {
	f.t.Helper()
	version, err := f.Update(f.t.Context(), ada, id, n-1, draft(fmt.Sprint("name", n), document(fmt.Sprint("text", n), 1000)))
	must(f.t, err)
	if version != n {
		f.t.Errorf("got version %d, want %d", version, n)
	}
}

func TestLastVersionsOfAPromptAreKept(t *testing.T) {
	f := newFixture(t)
	p := f.create("name1", document("text1", 1000))
	for n := int64(2); n <= prompts.MaxVersions+2; n++ {
		f.update(p.ID, n)
	}
	if got := f.versions(p.ID); len(got) != prompts.MaxVersions || got[0] != prompts.MaxVersions+2 || got[prompts.MaxVersions-1] != 3 {
		t.Errorf("got versions %v, want the last %d, the latest first", got, prompts.MaxVersions)
	}
	f.wantKept("after the updates", prompts.MaxVersions)
	if names := f.names(); names != fmt.Sprint("name", prompts.MaxVersions+2) {
		t.Errorf("got prompts %s, want the latest version alone", names)
	}
	must(t, f.DeleteVersion(t.Context(), ada, p.ID, 3))
	if got := f.versions(p.ID); len(got) != prompts.MaxVersions-1 || got[len(got)-1] != 4 {
		t.Errorf("after the deletion of version 3: got versions %v", got)
	}
	for what, c := range map[string]struct {
		account string
		version int64
	}{
		"a deleted version":                {ada, 3},
		"another account's version":        {eve, 4},
		"a version that is not yet":        {ada, prompts.MaxVersions + 3},
		"another account's latest version": {eve, prompts.MaxVersions + 2},
	} {
		if _, _, err := f.GetVersion(t.Context(), c.account, p.ID, c.version); !errors.Is(err, prompts.ErrNotFound) {
			t.Errorf("read %s: got error %v, want %v", what, err, prompts.ErrNotFound)
		}
		if err := f.DeleteVersion(t.Context(), c.account, p.ID, c.version); !errors.Is(err, prompts.ErrNotFound) {
			t.Errorf("delete %s: got error %v, want %v", what, err, prompts.ErrNotFound)
		}
	}
	if err := f.DeleteVersion(t.Context(), ada, p.ID, prompts.MaxVersions+2); !errors.Is(err, prompts.ErrNotFound) {
		t.Errorf("delete the latest version alone: got error %v, want %v", err, prompts.ErrNotFound)
	}
	if _, err := f.Versions(t.Context(), eve, p.ID); !errors.Is(err, prompts.ErrNotFound) {
		t.Errorf("list another account's versions: got error %v, want %v", err, prompts.ErrNotFound)
	}
	must(t, f.Delete(t.Context(), ada, p.ID))
	f.wantKept("after the deletion", 0)
	if n := f.count("prompts"); n != 0 {
		t.Errorf("%d versions of a deleted prompt are left", n)
	}
}

// The quota is for prompts: versions take what is left of it.
func TestOldestVersionsMakeRoomForASave(t *testing.T) {
	f := newFixture(t)
	first, second := f.create("name1", document("text1", 1000)), f.create("name1", document("text1", 1000))
	for n := int64(2); n <= 4; n++ {
		f.update(first.ID, n)
		f.update(second.ID, n)
	}
	used, err := f.Usage(t.Context(), ada)
	must(t, err)
	f.Reload(used)
	f.create("third", document("word", 2500)) // the room of three versions
	if got := fmt.Sprint(f.versions(first.ID), f.versions(second.ID)); got != "[4 3] [4 3 2]" {
		t.Errorf("got versions %s, want that the three oldest have gone", got)
	}
	f.Reload(4600) // a little more than the prompts take
	f.update(first.ID, 5)
	if got := fmt.Sprint(f.versions(first.ID), f.versions(second.ID)); got != "[5] [4]" {
		t.Errorf("got versions %s, want the latest only: not even the replaced one fits beside them", got)
	}
	// What a tab has not seen is not replaced, also where there is no room to keep it.
	_, err = f.Update(t.Context(), ada, first.ID, 4, draft("stale", document("stale", 1000)))
	if _, ok := errors.AsType[*prompts.QuotaError](err); !ok {
		t.Errorf("an update without room for a version that it is not based on: got error %v, want a QuotaError", err)
	}
	f.versions(first.ID)
}

// A link and the origin of a copy are the prompt's, and not a version's.
func TestLinkAndOriginStayWithTheLatestVersion(t *testing.T) {
	f := newFixture(t)
	d := draft("copy", document("text1", 1000))
	d.Origin = prompts.Origin{ID: "sh_X", Name: "original", Owner: "eve@example.org"}
	p, err := f.Create(t.Context(), ada, d)
	must(t, err)
	share, _, err := f.Share(t.Context(), ada, p.ID)
	must(t, err)
	f.update(p.ID, 2)
	got, read, err := f.GetShared(t.Context(), share)
	must(t, err)
	if got.Version != 2 || got.Origin != d.Origin || !bytes.Equal(read, document("text2", 1000)) {
		t.Errorf("got %+v and %d bytes, want the second version with its origin", got, len(read))
	}
	if got, _, err = f.GetVersion(t.Context(), ada, p.ID, 1); err != nil || got.Share != "" || got.Origin != (prompts.Origin{}) {
		t.Errorf("got %+v, error %v; want the first version without a link and an origin", got, err)
	}
}

func TestPromptsOfAnotherAccountAreNotFound(t *testing.T) {
	f := newFixture(t)
	p := f.create("study", document("first", 100))
	for name, c := range map[string]struct{ account, id string }{
		"another account's prompt": {eve, p.ID},
		"an unknown prompt":        {ada, "pr_X"},
	} {
		_, err := f.Update(t.Context(), c.account, c.id, 1, draft("study", document("second", 1<<20)))
		if !errors.Is(err, prompts.ErrNotFound) {
			t.Errorf("%s: got error %v, want %v", name, err, prompts.ErrNotFound)
		}
		f.wantKept(name, 1)
	}
	if err := f.Delete(t.Context(), eve, p.ID); !errors.Is(err, prompts.ErrNotFound) {
		t.Errorf("delete another account's prompt: got error %v, want %v", err, prompts.ErrNotFound)
	}
	if _, _, err := f.Get(t.Context(), eve, p.ID); !errors.Is(err, prompts.ErrNotFound) {
		t.Errorf("read another account's prompt: got error %v, want %v", err, prompts.ErrNotFound)
	}
}

// Of concurrent updates of one version, as by several tabs, each makes a version of its own.
func TestConcurrentUpdatesOfOneVersionLoseNothing(t *testing.T) {
	f := newFixture(t)
	p := f.create("study", document("first", 200<<10))
	var calls sync.WaitGroup
	want := map[string]bool{"study": true}
	for i := range 6 {
		name := fmt.Sprint("writer", i)
		want[name] = true
		calls.Go(func() {
			if _, err := f.Update(t.Context(), ada, p.ID, 1, draft(name, document(name, 300<<10))); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	all, err := f.Versions(t.Context(), ada, p.ID)
	must(t, err)
	for i, v := range all {
		_, read, err := f.GetVersion(t.Context(), ada, p.ID, v.Version)
		must(t, err)
		if v.Version != int64(7-i) || !want[v.Name] || v.Name != "study" && !bytes.Equal(read, document(v.Name, 300<<10)) {
			t.Errorf("got version %+v with %d bytes, want each document once", v, len(read))
		}
		delete(want, v.Name)
	}
	if len(want) > 0 {
		t.Errorf("the versions lack %v", want)
	}
	f.wantSwept("after the updates", 7)
}

func TestQuotaLimitsWhatAnAccountStores(t *testing.T) {
	f := newFixture(t)
	const limit = 1 << 20
	f.Reload(limit)
	var saves sync.WaitGroup
	for i := range 8 { // two fit
		saves.Go(func() {
			_, err := f.Create(t.Context(), ada, draft(fmt.Sprint(i), document("word", 400<<10)))
			if over, ok := errors.AsType[*prompts.QuotaError](err); err != nil && (!ok || over.Max != limit || over.Used+over.Size <= limit) {
				t.Errorf("save: got error %v, want none or a QuotaError", err)
			}
		})
	}
	saves.Wait()
	used, err := f.Usage(t.Context(), ada)
	must(t, err)
	if used > limit || used < limit/2 || f.count("prompts") != 2 {
		t.Errorf("got %d bytes in %d prompts, want two prompts within %d bytes", used, f.count("prompts"), limit)
	}
	f.wantKept("after refused saves", 2)

	all, _, err := f.Search(t.Context(), ada, nil, 100)
	must(t, err)
	larger := draft("larger", document("word", 800<<10))
	if _, err := f.Update(t.Context(), ada, all[0].ID, 1, larger); err == nil {
		t.Error("an update beyond the quota succeeded")
	}
	_, err = f.Create(t.Context(), eve, draft("hers", document("word", 200<<10)))
	must(t, err) // another account has its own quota
	f.Reload(1000)
	_, err = f.Update(t.Context(), ada, all[0].ID, 1, draft("smaller", document("word", 300<<10)))
	must(t, err) // less than before, though above the lowered quota
	for _, p := range all {
		must(t, f.Delete(t.Context(), ada, p.ID))
	}
	if used, err := f.Usage(t.Context(), ada); err != nil || used != 0 {
		t.Errorf("after the deletions: got %d bytes, error %v; want 0", used, err)
	}
	_, err = f.Create(t.Context(), ada, draft("again", document("word", 100)))
	must(t, err)
}

func TestNumberOfPromptsIsLimited(t *testing.T) {
	f := newFixture(t)
	must(t, f.db.WriteGrouped(t.Context(), func(tx database.Tx) error {
		for i := range prompts.MaxPrompts {
			_, err := tx.ExecContext(context.Background(), `INSERT INTO prompts (id, account_id, name, model, version, updated_at, document_bytes, bytes, document)
				VALUES ($1, $2, $1, 'm', 1, $3, 2, 2, $4)`, fmt.Sprint(i), ada, i, []byte(`{}`))
			if err != nil {
				return err
			}
		}
		return nil
	}))
	if _, err := f.Create(t.Context(), ada, draft("one more", []byte(`{}`))); !errors.Is(err, prompts.ErrTooMany) {
		t.Errorf("got error %v, want %v", err, prompts.ErrTooMany)
	}
	found, more, err := f.Search(t.Context(), ada, nil, 100)
	must(t, err)
	if len(found) != 100 || !more || found[0].Name != fmt.Sprint(prompts.MaxPrompts-1) {
		t.Errorf("got %d prompts, more: %v, first %q; want 100, more, and the last first", len(found), more, found[0].Name)
	}
}

func TestSavesOfAnAccountAreLimitedByTheirSize(t *testing.T) {
	f := newFixture(t)
	const size = 4 << 20
	for range prompts.RateBurst / size {
		if retryIn := f.AllowSave(ada, size); retryIn > 0 {
			t.Fatalf("within %d bytes: got a wait of %v", prompts.RateBurst, retryIn)
		}
	}
	if f.AllowSave(ada, size) <= 0 {
		t.Errorf("after %d bytes: got no time until the next save", prompts.RateBurst)
	}
	if retryIn := f.AllowSave(eve, size); retryIn > 0 {
		t.Errorf("another account: got a wait of %v, want a rate of its own", retryIn)
	}
}

// A deleted text is neither in the storage nor, once its write-ahead log has been written back, in the database file.
func TestDeletedTextsAreGone(t *testing.T) {
	databasetest.SkipPostgres(t, "the files of its server belong to all databases")
	f := newFixture(t)
	small, large := f.create("small", document("secret-one", 500)), f.create("large", document("secret-two", 1<<20))
	replaced := f.create("replaced", document("secret-three", 1<<20))
	_, err := f.Update(t.Context(), ada, replaced.ID, 1, draft("replaced", document("kept", 1<<20)))
	must(t, err)
	must(t, f.DeleteVersion(t.Context(), ada, replaced.ID, 1))
	must(t, f.Delete(t.Context(), ada, small.ID))
	must(t, f.Delete(t.Context(), ada, large.ID))
	f.wantSwept("after the deletions", 1)
	must(t, f.db.Close())
	names, err := filepath.Glob(f.path + "*")
	must(t, err)
	objects, err := filepath.Glob(f.path + ".files/*")
	must(t, err)
	kept := 0
	for _, name := range append(names, objects...) {
		content, err := os.ReadFile(name)
		if name != f.path+".files" {
			must(t, err)
		}
		for _, word := range []string{"secret-one", "secret-two", "secret-three"} {
			if bytes.Contains(content, []byte(word)) {
				t.Errorf("%s contains %q", filepath.Base(name), word)
			}
		}
		if bytes.Contains(content, []byte("kept")) {
			kept++
		}
	}
	if kept != 2 {
		t.Errorf("the saved word is in %d files, want those of the database and of the object: otherwise this test shows nothing", kept)
	}
}

// A save that is interrupted before its transaction leaves nothing, and one whose transaction has begun is made.
func TestInterruptedSaveLeavesNothing(t *testing.T) {
	f := newFixture(t)
	for i := range 6 {
		ctx, cancel := context.WithCancel(t.Context())
		stopped := prompts.New(f.db, &interrupting{f.batches, i, cancel}, quota)
		_, err := stopped.Create(ctx, ada, draft("n", document("word", 2<<20)))
		cancel()
		if began := i%2 == 1; began && err != nil || !began && !errors.Is(err, context.Canceled) {
			t.Fatalf("transaction has begun: %v: got error %v", began, err)
		}
	}
	must(t, f.db.WriteGrouped(t.Context(), func(database.Tx) error { return nil })) // after what is queued
	f.wantSwept("after the saves", f.count("prompts"))
}

// interrupting ends the context of a save before its object is written, or in the transaction of its row.
type interrupting struct {
	storage.Objects
	at     int
	cancel func()
}

func (i *interrupting) WriteObject(ctx context.Context, data []byte, keep func(context.Context, database.Tx, string) error) error {
	if i.at%2 == 0 {
		i.cancel()
	}
	return i.Objects.WriteObject(ctx, data, func(ctx context.Context, tx database.Tx, name string) error {
		i.cancel()
		return keep(ctx, tx, name)
	})
}

func TestSaveThatTheStorageRefusesLeavesNothing(t *testing.T) {
	f := newFixture(t)
	full := batch.New(f.db, fullStore{f.files}, nil, batch.Settings{}, zap.NewNop())
	refused := prompts.New(f.db, full, quota)
	if _, err := refused.Create(t.Context(), ada, draft("n", document("word", 1000))); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got error %v, want %v", err, syscall.ENOSPC)
	}
	must(t, f.db.WriteGrouped(t.Context(), func(database.Tx) error { return nil })) // after what is queued
	if f.count("prompts") != 0 {
		t.Error("a prompt without a document is listed")
	}
	f.wantSwept("after the save", 0)
}

// fullStore writes half of what it is given.
type fullStore struct{ storage.Store }

func (s fullStore) Put(ctx context.Context, name string, data []byte, flush bool) error {
	return errors.Join(s.Store.Put(ctx, name, data[:len(data)/2], flush), syscall.ENOSPC)
}

func TestSearchFindsPartsOfWordsInAnyCase(t *testing.T) {
	f := newFixture(t)
	f.create("hay", []byte(`{"tree":{"nodes":[{"text":"`+strings.Repeat("x", 10<<10)+`needle twice twice \u0000 \ud800 Übermut"}]}}`))
	for query, want := range map[string]string{
		"NEEDLE": "hay", "needle hay": "hay", "xne wic": "hay", "über": "hay", "\x00": "hay", "%": "", "needle missing": "", "twicetwice": "",
	} {
		if got := f.names(strings.Fields(query)...); got != want {
			t.Errorf("a search for %q finds %q, want %q", query, got, want)
		}
	}
}

// A row stays small, whatever the document is.
func TestWordsOfAPromptAreLimited(t *testing.T) {
	f := newFixture(t)
	var text strings.Builder
	for i := range 100_000 {
		fmt.Fprint(&text, " w", i)
	}
	p := f.create("many", []byte(`{"tree":{"nodes":[{"text":"`+text.String()+`"}]}}`))
	if words := p.Bytes - int64(text.Len()); words > prompts.MaxWords+100 || words < prompts.MaxWords {
		t.Errorf("the words take %d bytes, want %d", words, prompts.MaxWords)
	}
	if f.names("w5000") != "many" || f.names("w99999") != "" {
		t.Error("a search does not find the first words only")
	}
}

func TestSearchFindsWordsAcrossTokens(t *testing.T) {
	f := newFixture(t)
	f.create("as lists", []byte(`{"tree":{"format":3,"nodes":[{"text":"once","tokens":{"ids":[1,2],"text":[" nee","dle"]}}]}}`))
	f.create("as objects", []byte(`{"tree":{"format":1,"nodes":[{"text":"once","tokens":[{"id":1,"text":" pin"},{"id":2,"text":"cushion"}]}]}}`))
	if f.names("needle", "once") != "as lists" || f.names("pincushion", "once") != "as objects" {
		t.Errorf("a search finds %q and %q, want each prompt by its tokens", f.names("needle", "once"), f.names("pincushion", "once"))
	}
}
