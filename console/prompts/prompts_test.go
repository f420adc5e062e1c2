package prompts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"

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

// fixture is a Store on a new database with the accounts ada and eve.
type fixture struct {
	*prompts.Store
	t    testing.TB
	db   *database.DB
	path string
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "base.db")
	db, err := database.Open(tb.Context(), databasetest.Settings(tb, path), zap.NewNop())
	must(tb, err)
	tb.Cleanup(func() { db.Close() })
	f := &fixture{prompts.New(db, zap.NewNop(), prompts.Settings{MaxBytesPerAccount: quota}), tb, db, path}
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

// wantLeft checks how many chunks are stored, and that no content is left over.
func (f *fixture) wantLeft(what string, chunks int) {
	f.t.Helper()
	if got, leftovers := f.count("prompt_chunks"), f.count("prompt_leftovers"); got != chunks || leftovers != 0 {
		f.t.Errorf("%s: got %d chunks and %d leftovers, want %d and 0", what, got, leftovers, chunks)
	}
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
	f := newFixture(t)
	for _, size := range []int{
		40, 1000, prompts.ChunkBytes/2 - 1, prompts.ChunkBytes / 2, prompts.ChunkBytes - 1, prompts.ChunkBytes,
		prompts.ChunkBytes + 1, 2 * prompts.ChunkBytes, 4 << 20,
	} {
		name := fmt.Sprint("of ", size)
		want := document("word", size)
		p := f.create(name, want)
		got, read, err := f.Get(t.Context(), ada, p.ID)
		must(t, err)
		if got != p || !bytes.Equal(read, want) {
			t.Errorf("%d bytes: got %+v and %d bytes, want %+v and the same document", size, got, len(read), p)
		}
		if p.Bytes < int64(size) {
			t.Errorf("%d bytes: the prompt counts as %d bytes, want at least the document", size, p.Bytes)
		}
		must(t, f.Delete(t.Context(), ada, p.ID))
		f.wantLeft("after the deletion", 0)
	}
}

func TestUpdateReplacesTheDocumentAndItsText(t *testing.T) {
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
	must(t, f.Delete(t.Context(), ada, p.ID))
	f.wantLeft("after the deletion", 0)
}

func TestUpdateOfAnOldVersionWritesNothing(t *testing.T) {
	f := newFixture(t)
	p := f.create("study", document("first", 100))
	before := f.count("prompt_chunks")
	for name, c := range map[string]struct {
		account, id string
		version     int64
		want        error
	}{
		"an old version":            {ada, p.ID, 0, prompts.ErrConflict},
		"a version that is not yet": {ada, p.ID, 2, prompts.ErrConflict},
		"another account's prompt":  {eve, p.ID, 1, prompts.ErrNotFound},
		"an unknown prompt":         {ada, "pr_X", 1, prompts.ErrNotFound},
	} {
		_, err := f.Update(t.Context(), c.account, c.id, c.version, draft("study", document("second", 1<<20)))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want %v", name, err, c.want)
		}
		f.wantLeft(name, before)
	}
	if err := f.Delete(t.Context(), eve, p.ID); !errors.Is(err, prompts.ErrNotFound) {
		t.Errorf("delete another account's prompt: got error %v, want %v", err, prompts.ErrNotFound)
	}
	if _, _, err := f.Get(t.Context(), eve, p.ID); !errors.Is(err, prompts.ErrNotFound) {
		t.Errorf("read another account's prompt: got error %v, want %v", err, prompts.ErrNotFound)
	}
}

// Of concurrent updates of one version, one succeeds, and nothing of the others stays.
func TestConcurrentUpdatesOfOneVersion(t *testing.T) {
	f := newFixture(t)
	p := f.create("study", document("first", 200<<10))
	var calls sync.WaitGroup
	results := make(chan error, 6)
	for i := range cap(results) {
		calls.Go(func() {
			_, err := f.Update(t.Context(), ada, p.ID, 1, draft("study", document(fmt.Sprint("writer", i), 300<<10)))
			results <- err
		})
	}
	calls.Wait()
	succeeded := 0
	for range cap(results) {
		switch err := <-results; {
		case err == nil:
			succeeded++
		case !errors.Is(err, prompts.ErrConflict):
			t.Error(err)
		}
	}
	if succeeded != 1 {
		t.Errorf("%d updates of one version succeeded, want 1", succeeded)
	}
	now, _, err := f.Get(t.Context(), ada, p.ID)
	must(t, err)
	f.wantLeft("after the updates", int((now.Bytes+prompts.ChunkBytes-1)/prompts.ChunkBytes))
}

func TestQuotaLimitsWhatAnAccountStores(t *testing.T) {
	f := newFixture(t)
	const limit = 1 << 20
	f.Reload(prompts.Settings{MaxBytesPerAccount: limit})
	var saves sync.WaitGroup
	for i := range 8 { // each takes 400 KiB with its searchable text, so two fit
		saves.Go(func() {
			_, err := f.Create(t.Context(), ada, draft(fmt.Sprint(i), document("word", 200<<10)))
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
	f.wantLeft("after refused saves", int(used/prompts.ChunkBytes)+2)

	all, _, err := f.Search(t.Context(), ada, nil, 100)
	must(t, err)
	larger := draft("larger", document("word", 400<<10))
	if _, err := f.Update(t.Context(), ada, all[0].ID, 1, larger); err == nil {
		t.Error("an update beyond the quota succeeded")
	}
	_, err = f.Create(t.Context(), eve, draft("hers", document("word", 200<<10)))
	must(t, err) // another account has its own quota
	f.Reload(prompts.Settings{MaxBytesPerAccount: 1000})
	_, err = f.Update(t.Context(), ada, all[0].ID, 1, draft("smaller", document("word", 100<<10)))
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
	for i := range prompts.MaxPrompts {
		f.create(fmt.Sprint(i), []byte(`{}`))
	}
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
		must(t, f.AllowSave(ada, size))
	}
	limited, ok := errors.AsType[*prompts.RateError](f.AllowSave(ada, size))
	if !ok || limited.RetryIn <= 0 {
		t.Errorf("after %d bytes: got %v, want a *RateError with the time of the next save", prompts.RateBurst, limited)
	}
	must(t, f.AllowSave(eve, size)) // another account has its own rate
}

// A deleted text is neither in the database file nor in its write-ahead log once that has been written back.
func TestDeletedTextsAreOverwritten(t *testing.T) {
	f := newFixture(t)
	small, large := f.create("small", document("secret-one", 500)), f.create("large", document("secret-two", 1<<20))
	replaced := f.create("replaced", document("secret-three", 1<<20))
	_, err := f.Update(t.Context(), ada, replaced.ID, 1, draft("replaced", document("kept", 1<<20)))
	must(t, err)
	must(t, f.Delete(t.Context(), ada, small.ID))
	must(t, f.Delete(t.Context(), ada, large.ID))
	must(t, f.db.Close())
	names, err := filepath.Glob(f.path + "*")
	must(t, err)
	for _, name := range names {
		content, err := os.ReadFile(name)
		must(t, err)
		for _, word := range []string{"secret-one", "secret-two", "secret-three"} {
			if bytes.Contains(content, []byte(word)) {
				t.Errorf("%s contains %q", filepath.Base(name), word)
			}
		}
		if strings.HasSuffix(name, ".db") && !bytes.Contains(content, []byte("kept")) {
			t.Error("the database file does not contain the text that is saved, so this test shows nothing")
		}
	}
}

// The pages of deleted and replaced prompts are used again.
func TestFileDoesNotGrowWithDeletedPrompts(t *testing.T) {
	if testing.Short() {
		t.Skip("takes several seconds; make test-all runs it")
	}
	databasetest.SkipPostgres(t, "its server reuses the space of deleted rows after a vacuum")
	f := newFixture(t)
	size := func() int64 {
		f.t.Helper()
		var pages, pageSize int64
		must(t, f.db.Read().QueryRow("PRAGMA page_count").Scan(&pages))
		must(t, f.db.Read().QueryRow("PRAGMA page_size").Scan(&pageSize))
		return pages * pageSize
	}
	cycle := func() {
		f.t.Helper()
		p := f.create("n", document("word", 1<<20))
		_, err := f.Update(t.Context(), ada, p.ID, 1, draft("n", document("other", 1<<20)))
		must(t, err)
		must(t, f.Delete(t.Context(), ada, p.ID))
	}
	cycle()
	first := size()
	for range 5 {
		cycle()
	}
	if last := size(); last > first+first/10 {
		t.Errorf("the file has %d bytes after six cycles, and had %d after the first", last, first)
	}
}

// An interrupted save leaves nothing, at whatever point it is interrupted.
func TestInterruptedSaveLeavesNothing(t *testing.T) {
	f := newFixture(t)
	for chunks := range 8 {
		ctx, cancel := context.WithCancel(t.Context())
		var saves sync.WaitGroup
		saves.Go(func() {
			poll.Until(t, "some chunks are written", func() bool { return f.count("prompt_chunks") >= chunks })
			cancel()
		})
		_, err := f.Create(ctx, ada, draft("n", document("word", 2<<20)))
		saves.Wait()
		if err == nil { // the save was faster
			continue
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("interrupted save: got error %v, want %v", err, context.Canceled)
		}
		if f.count("prompts") == 0 {
			f.wantLeft(fmt.Sprintf("interrupted after %d chunks", chunks), 0)
		}
	}
}

// What a killed process has left is deleted by the next one, but not what another process may still be writing.
func TestLeftoversOfAKilledProcessAreDeleted(t *testing.T) {
	f := newFixture(t)
	p := f.create("kept", document("word", 200<<10))
	kept := f.count("prompt_chunks")
	for i, deleteAfter := range []int64{1, 1, 1 << 60} {
		f.execute(`INSERT INTO prompt_leftovers (content_id, delete_after) VALUES ($1, $2)`, fmt.Sprint("c", i), deleteAfter)
		for n := range 3 {
			f.execute(`INSERT INTO prompt_chunks (content_id, n, data) VALUES ($1, $2, $3)`, fmt.Sprint("c", i), n, []byte{0})
		}
	}
	f.Start(t.Context())
	defer f.Close()
	poll.Until(t, "the leftovers are deleted", func() bool { return f.count("prompt_leftovers") == 1 })
	if got := f.count("prompt_chunks"); got != kept+3 {
		t.Errorf("got %d chunks, want %d of the prompt and 3 of the save that is not overdue", got, kept)
	}
	_, _, err := f.Get(t.Context(), ada, p.ID)
	must(t, err)
}

func TestSearchFindsWordsAcrossChunks(t *testing.T) {
	f := newFixture(t)
	for _, at := range []int{prompts.ChunkBytes - 3, 2*prompts.ChunkBytes - 1, 3*prompts.ChunkBytes + 7} {
		text := []byte(strings.Repeat("x", 4*prompts.ChunkBytes))
		copy(text[at:], "needle")
		d := slices.Concat([]byte(`{"tree":{"nodes":[{"text":"`), text, []byte(`"}]}}`))
		p := f.create("hay", d)
		if f.names("NEEDLE") != "hay" || f.names("needle", "hay") != "hay" || f.names("needle", "missing") != "" {
			t.Errorf("a word at byte %d of the text: a search finds %q, %q, %q", at,
				f.names("NEEDLE"), f.names("needle", "hay"), f.names("needle", "missing"))
		}
		must(t, f.Delete(t.Context(), ada, p.ID))
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

func FuzzMatchesTextInParts(f *testing.F) {
	f.Add("the quick brown fox", "quick fox", uint8(3))
	f.Add("ééé", "éé", uint8(1))
	f.Fuzz(func(t *testing.T, text, query string, size uint8) {
		text = prompts.Fold(text)
		words := strings.Fields(query)
		want := true
		for _, w := range words {
			want = want && strings.Contains(text, prompts.Fold(w))
		}
		parts := slices.Collect(slices.Chunk([]byte(text), int(size)+1))
		if got := prompts.Matches(parts, words); got != want && len(parts) > 0 {
			t.Errorf("%q in %q, in parts of %d bytes: got %v, want %v", words, text, int(size)+1, got, want)
		}
	})
}
