package receipt

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"basegate/database"
)

// headFile is the file in the folder beside the database that has the latest checkpoint that anybody can have seen, whatever ends
// the process. It is not in the database, so that a database that was put back is recognized as older than what was given out.
const headFile = "head"

// saveHead writes a tree head to its file, and flushes it if asked to. A tree head of a log is never shorter than those before,
// and in place it is written without a flush; a power failure may leave half of it.
func saveHead(folder, checkpoint string, flush bool) error {
	file, err := os.OpenFile(filepath.Join(folder, headFile), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("save tree head: %w", err)
	}
	_, err = file.WriteAt([]byte(checkpoint), 0)
	if flush {
		err = errors.Join(err, file.Sync())
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("save tree head: %w", err)
	}
	return nil
}

// givenHead is a tree head that was given out.
type givenHead struct {
	TreeHead

	path string // of its file
}

// headPaths returns the files of tree heads: that of the folder, and the published one.
func (s *Settings) headPaths() (paths []string) {
	if s.Folder != "" {
		paths = append(paths, filepath.Join(s.Folder, headFile))
	}
	if published := publishedFile(s.Publish); published != "" {
		paths = append(paths, published)
	}
	return paths
}

// givenHeads returns the tree heads that the files have.
func givenHeads(s Settings, verifier note.Verifier) (given []givenHead, err error) {
	for _, path := range s.headPaths() {
		checkpoint, err := os.ReadFile(path)
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("read tree head: %w", err)
		case len(checkpoint) == 0:
			continue
		}
		head, err := openCheckpoint(string(checkpoint), verifier)
		_, otherKey := errors.AsType[*WrongKeyError](err)
		switch {
		case err == nil:
			given = append(given, givenHead{head, path})
		case path == filepath.Join(s.Folder, headFile) && !otherKey: // half of it
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
	text, err := os.ReadFile(path)
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
	public := ed25519.NewKeyFromSeed(secret[1:]).Public().(ed25519.PublicKey)
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
	made, err := writeTemporary(path, []byte(secret+"\n"), 0o600, true)
	if err != nil {
		return nil, fmt.Errorf("write signing key: %w", err)
	}
	if err = os.Link(made, path); errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err = errors.Join(err, os.Remove(made), database.Fsync(filepath.Dir(path))); err != nil {
		return nil, fmt.Errorf("write signing key: %w", err)
	}
	return readKey(path)
}

// setAside renames the files of a log that ends, the published one too, and returns the suffix of their new names.
func setAside(s Settings, stamp string) (suffix string, err error) {
	suffix = ".until-" + stamp
	for _, from := range append(s.headPaths(), s.Key) {
		if _, err := os.Lstat(from + suffix); err == nil {
			return "", fmt.Errorf("set the old log aside: %w", fs.ErrExist)
		}
		if err := os.Rename(from, from+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("set the old log aside: %w", err)
		}
	}
	return suffix, nil
}

// replaceFile replaces a file at once, so that nobody reads half of it.
func replaceFile(path string, content []byte) error {
	written, err := writeTemporary(path, content, 0o644, false)
	if err != nil {
		return err
	}
	if err := os.Rename(written, path); err != nil {
		return errors.Join(err, os.Remove(written))
	}
	return nil
}

// writeTemporary writes a file beside another, and returns its name.
func writeTemporary(path string, content []byte, mode fs.FileMode, flush bool) (name string, err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return "", err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Chmod(mode))
	if flush {
		err = errors.Join(err, file.Sync())
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}
