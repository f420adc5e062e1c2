package receipt

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// The files of the folder beside the database. They are not in the database, so that a backup of it does not hold the key,
// and so that a database that was put back is recognized as older than the tree heads that have been given out.
const (
	// headFile has the checkpoint that was in the database when the tree was last saved, and survives a power failure.
	headFile = "head"

	// newestFile has the latest checkpoint that anybody can have seen, whatever ends the process. It is not flushed,
	// since the entries of a tree head are on disk before it is signed: after a power failure, headFile alone may say
	// that a database that was put back is too old. It is written in place, so that failure may leave half of it.
	newestFile = "newest"
)

// headFiles are the files of the tree heads. One goroutine at a time may use them.
type headFiles struct {
	folder string
	newest *os.File // nil before the first saveNewest
}

// saveNewest writes a tree head to its file before anybody sees it. A tree head of a log is never shorter than those before.
func (h *headFiles) saveNewest(checkpoint string) (err error) {
	if h.newest == nil {
		if h.newest, err = os.OpenFile(filepath.Join(h.folder, newestFile), os.O_WRONLY|os.O_CREATE, 0o600); err != nil {
			return fmt.Errorf("save tree head: %w", err)
		}
		err = syncFolder(h.folder)
	}
	if err == nil {
		_, err = h.newest.WriteAt([]byte(checkpoint), 0)
	}
	if err != nil {
		return fmt.Errorf("save tree head: %w", errors.Join(err, h.close()))
	}
	return nil
}

// save replaces the file of the tree head that the database has.
func (h *headFiles) save(checkpoint string) error {
	if err := writeFile(filepath.Join(h.folder, headFile), []byte(checkpoint)); err != nil {
		return fmt.Errorf("save tree head: %w", err)
	}
	return nil
}

func (h *headFiles) close() (err error) {
	if h.newest != nil {
		err, h.newest = h.newest.Close(), nil
	}
	return err
}

// givenHead is a tree head that was given out, and its file.
type givenHead struct {
	TreeHead

	path, checkpoint string
}

// givenHeads returns the tree heads that the files have: those of the folder, and the published one.
func givenHeads(s Settings, verifier note.Verifier) (given []givenHead, err error) {
	newest := filepath.Join(s.Folder, newestFile)
	paths := []string{filepath.Join(s.Folder, headFile), newest, publishedFile(s.Publish)}
	if s.Folder == "" {
		paths = paths[2:]
	}
	for _, path := range paths {
		if path == "" {
			continue
		}
		checkpoint, err := readFile(path)
		if err != nil {
			return nil, fmt.Errorf("read tree head: %w", err)
		}
		if checkpoint == "" {
			continue
		}
		head, err := openCheckpoint(checkpoint, verifier)
		_, otherKey := errors.AsType[*WrongKeyError](err)
		switch {
		case err == nil:
			given = append(given, givenHead{head, path, checkpoint})
		case path == newest && !otherKey: // half of it
		default:
			return nil, fmt.Errorf("%s is not a tree head of this receipt log: %w", path, err)
		}
	}
	return given, nil
}

// signingKey signs the tree heads of a log.
type signingKey struct {
	signer   note.Signer
	verifier note.Verifier
	vkey     string // the verifier key, which anybody may know
}

// ErrNoKey is returned if there is no signing key.
var ErrNoKey = errors.New("there is no signing key of the receipt log yet; the gateway makes it at its first start with receipts.enabled")

// readKey reads the signing key. The error is ErrNoKey if there is none.
func readKey(path string) (*signingKey, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the operator chooses the path
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrNoKey
	case err != nil:
		return nil, fmt.Errorf("read signing key: %w", err)
	}
	key, err := parseSigningKey(strings.TrimSuffix(string(text), "\n"))
	if err != nil {
		return nil, fmt.Errorf("read signing key %s: %w", path, err)
	}
	return key, nil
}

var errSigningKey = errors.New("the file holds no signing key; put it back from its backup, or begin a new log with basegate receipt log new")

// parseSigningKey parses PRIVATE+KEY+NAME+ID+KEY, whose last part is the algorithm and the seed of an Ed25519 key.
func parseSigningKey(text string) (*signingKey, error) {
	signer, err := note.NewSigner(text)
	if err != nil {
		return nil, errSigningKey
	}
	const parts = 5
	secret, err := base64.StdEncoding.DecodeString(strings.SplitN(text, "+", parts)[parts-1])
	if err != nil || len(secret) != 1+ed25519.SeedSize {
		return nil, errSigningKey
	}
	public := ed25519.NewKeyFromSeed(secret[1:]).Public().(ed25519.PublicKey) //nolint:errcheck,forcetypeassert // its only type
	vkey, err := note.NewEd25519VerifierKey(signer.Name(), public)
	if err != nil {
		return nil, errSigningKey
	}
	verifier, err := parseKey(vkey)
	if err != nil {
		return nil, errSigningKey
	}
	return &signingKey{signer, verifier, vkey}, nil
}

// makeKey makes a signing key for a log with a name and writes it to a file. If another gateway with the same folder has made
// the file meanwhile, makeKey returns the key of that.
func makeKey(path, origin string) (*signingKey, error) {
	secret, _, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		return nil, fmt.Errorf("make signing key: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make folder of the receipt log: %w", err)
	}
	made := path + "." + rand.Text()
	if err := writeFile(made, []byte(secret+"\n")); err != nil {
		return nil, fmt.Errorf("write signing key: %w", err)
	}
	err = os.Link(made, path)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err = errors.Join(err, os.Remove(made), syncFolder(filepath.Dir(path))); err != nil {
		return nil, fmt.Errorf("write signing key: %w", err)
	}
	return readKey(path)
}

// setAside renames the files of a log that ends, the published one too, and returns the suffix of their new names.
func setAside(s Settings, stamp string) (suffix string, err error) {
	suffix = ".until-" + stamp
	files := []string{s.Key}
	if s.Folder != "" {
		files = append(files, filepath.Join(s.Folder, headFile), filepath.Join(s.Folder, newestFile))
	}
	if published := publishedFile(s.Publish); published != "" {
		files = append(files, published)
	}
	for _, from := range files {
		if _, err := os.Lstat(from + suffix); err == nil {
			return "", fmt.Errorf("set the old log aside: %w", fs.ErrExist)
		}
		if err := os.Rename(from, from+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("set the old log aside: %w", err)
		}
	}
	return suffix, nil
}

// readFile returns the content of a small file, or "" if there is none.
func readFile(path string) (string, error) {
	file, err := os.Open(path) //nolint:gosec // the operator chooses the path
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer file.Close()
	var content strings.Builder
	_, err = io.CopyN(&content, file, maxReceipt)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return content.String(), err
}

// writeFile replaces a file, which only its owner may read, and flushes it.
func writeFile(path string, content []byte) error {
	return errors.Join(replaceFile(path, content, 0o600, true), syncFolder(filepath.Dir(path)))
}

// replaceFile replaces a file at once, so that nobody reads half of it.
func replaceFile(path string, content []byte, mode fs.FileMode, flush bool) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	_, err = file.Write(content)
	err = errors.Join(err, file.Chmod(mode))
	if flush {
		err = errors.Join(err, file.Sync())
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

func syncFolder(path string) error {
	folder, err := os.Open(path) //nolint:gosec // the operator chooses the path
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
