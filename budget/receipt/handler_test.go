package receipt_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"basegate/budget/receipt"
	apierr "basegate/errors"
)

// get calls a handler of the log and returns the body, or the code of its error.
func get(t *testing.T, serve func(w http.ResponseWriter, r *http.Request) error, query string) string {
	t.Helper()
	w := httptest.NewRecorder()
	err := serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/receipts/x"+query, http.NoBody))
	if err != nil {
		return string(apierr.From(err).Code)
	}
	return w.Body.String()
}

func TestEntryAndNonceAreForTheKeyThatMadeTheRequest(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.add(4)
	entry := f.sealPlain()
	f.proven(entry)
	leaf := entry.LeafHash().String()
	for _, c := range []struct {
		key, query   string
		entry, nonce bool
		code         string
	}{
		{"key_1", "", true, false, ""},
		{"key_1", "?nonce=1", true, true, ""},
		{"key_1", "?nonce=0", true, false, ""},
		{"key_1", "?nonce=yes", false, false, "invalid_request"},
		{"key_2", "", false, false, ""},
		{"key_2", "?nonce=1", false, false, "not_found"},
		{"", "", false, false, ""},
		{"", "?nonce=1", false, false, "invalid_api_key"},
	} {
		got := get(t, func(w http.ResponseWriter, r *http.Request) error { return f.log.ServeReceipt(w, r, leaf, c.key) }, c.query)
		if c.code != "" {
			if got != c.code {
				t.Errorf("key %q, %q: got %s, want %s", c.key, c.query, got, c.code)
			}
			continue
		}
		r, err := receipt.Parse([]byte(got))
		if err != nil {
			t.Errorf("key %q, %q: %v in %s", c.key, c.query, err, got)
			continue
		}
		if (r.Entry != nil) != c.entry || (r.Nonce != nil) != c.nonce || r.Checkpoint == "" {
			t.Errorf("key %q, %q: got %s, want entry %v, nonce %v and a proof", c.key, c.query, got, c.entry, c.nonce)
		}
		if c.nonce {
			if err := r.Verify([]byte(request), []byte(answer), f.log.VerifierKey()); err != nil {
				t.Errorf("the whole receipt: %v", err)
			}
		}
	}
	for _, unknown := range []string{strings.Repeat("0", 64), "x", strings.ToUpper(leaf)} {
		if got := get(t, func(w http.ResponseWriter, r *http.Request) error { return f.log.ServeReceipt(w, r, unknown, "key_1") }, ""); got != "not_found" {
			t.Errorf("%s: got %s, want not_found", unknown, got)
		}
	}
}

func TestTilesAreThoseOfTheLatestTreeHead(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.add(300)
	for path, want := range map[string]int{
		"0/000": 256, "0/000.p/3": 3, "0/001.p/44": 44, "0/001.p/45": -1, "0/001": -1, "1/000.p/1": 1, "1/000.p/2": -1,
		"0/0": -1, "entries/000": -1, "data/000": -1, "-1/000": -1, "8/000": -1, "0/x001/000": -1, "": -1, "0/000.p/256": -1, "0/000.p/0": -1,
	} {
		got := get(t, func(w http.ResponseWriter, r *http.Request) error { return f.log.ServeTile(w, r, path) }, "")
		if want < 0 && got != "not_found" || want >= 0 && len(got) != 32*want {
			t.Errorf("tile %q has %d bytes, want %d hashes (negative: not_found)", path, len(got), want)
		}
	}
}

// serve serves a log over HTTP as the gateway does.
func (f *fixture) serve() *receipt.Remote {
	mux := http.NewServeMux()
	handle := func(pattern string, serve func(w http.ResponseWriter, r *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := serve(w, r); err != nil {
				w.WriteHeader(apierr.From(err).Code.Status())
			}
		})
	}
	handle("/receipts/checkpoint", f.log.ServeCheckpoint)
	handle("/receipts/tile/{path...}", func(w http.ResponseWriter, r *http.Request) error { return f.log.ServeTile(w, r, r.PathValue("path")) })
	server := httptest.NewServer(mux)
	f.t.Cleanup(server.Close)
	return &receipt.Remote{URL: server.URL + "/receipts/", Client: server.Client()}
}

func TestConsistencyIsProvenByTheTilesOfARemoteLog(t *testing.T) {
	f := newFixture(t)
	f.start()
	remote, key := f.serve(), f.log.VerifierKey()
	var heads []receipt.TreeHead
	take := func() {
		t.Helper()
		checkpoint, err := remote.Checkpoint(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		head, err := receipt.OpenCheckpoint(checkpoint, key)
		if err != nil {
			t.Fatal(err)
		}
		heads = append(heads, head)
	}
	for _, n := range []int{0, 1, 6, 255, 300} {
		if n > 0 {
			f.add(n)
		}
		take()
	}
	for i, newer := range heads {
		for j, older := range heads {
			err := receipt.CheckConsistency(older, newer, remote.Tiles(t.Context()))
			if i >= j && err != nil {
				t.Errorf("%d entries extend %d: %v", newer.Size, older.Size, err)
			}
			if cut := new(receipt.CutError); i < j && !errors.As(err, &cut) {
				t.Errorf("%d entries after %d: got %v, want a CutError", newer.Size, older.Size, err)
			}
		}
	}
	forked := heads[2]
	forked.Root[3] ^= 1
	if err := receipt.CheckConsistency(forked, heads[4], remote.Tiles(t.Context())); !errors.As(err, new(*receipt.ForkError)) {
		t.Errorf("another root: got %v, want a ForkError", err)
	}
	forked = heads[4]
	forked.Root[3] ^= 1
	if err := receipt.CheckConsistency(heads[2], forked, remote.Tiles(t.Context())); err == nil {
		t.Error("tiles prove a tree head that is not theirs")
	}
}

func TestPublishedFileIsReplacedAtOnce(t *testing.T) {
	f := newFixture(t)
	f.settings.Publish = filepath.Join(t.TempDir(), "head")
	f.start()
	f.add(1)
	f.stop()
	entries, err := os.ReadDir(filepath.Dir(f.settings.Publish))
	if err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, error %v, want the tree head alone", entries, err)
	}
}

// The tiles of a log that somebody has changed on their way, or in its database, prove nothing.
func TestEveryChangedTileIsFound(t *testing.T) {
	f := newFixture(t)
	f.start()
	remote := f.serve()
	head := func() receipt.TreeHead {
		t.Helper()
		checkpoint, err := remote.Checkpoint(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		opened, err := receipt.OpenCheckpoint(checkpoint, f.log.VerifierKey())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 8 * len(checkpoint) {
			changed := []byte(checkpoint)
			changed[i/8] ^= 1 << (i % 8)
			if _, err := receipt.OpenCheckpoint(string(changed), f.log.VerifierKey()); err == nil {
				t.Errorf("bit %d of byte %d of a tree head is not checked", i%8, i/8)
			}
		}
		return opened
	}
	f.add(100)
	older := head()
	f.add(200)
	newer := head()
	for bit := 0; bit < 8*32*256; bit += 997 { // of each tile that is read
		changed, reached := bit/8, false
		err := receipt.CheckConsistency(older, newer, func(tile tlog.Tile) ([]byte, error) {
			data, err := remote.Tiles(t.Context())(tile)
			if err == nil && changed < len(data) {
				data[changed] ^= 1 << (bit % 8)
				reached = true
			}
			return data, err
		})
		if err == nil || !reached {
			t.Errorf("byte %d of the tiles is changed: %v, and the tree heads are consistent: %v", changed, reached, err == nil)
		}
	}
	for name, tiles := range map[string]receipt.TileSource{
		"too short": func(tile tlog.Tile) ([]byte, error) {
			data, err := remote.Tiles(t.Context())(tile)
			return data[:max(0, len(data)-32)], err
		},
		"garbage": func(tlog.Tile) ([]byte, error) { return []byte("garbage"), nil },
	} {
		if err := receipt.CheckConsistency(older, newer, tiles); err == nil {
			t.Errorf("tiles that are %s prove a tree head", name)
		}
	}
}
