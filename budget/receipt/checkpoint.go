package receipt

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// TreeHead is the content of a checkpoint: how many entries a log has and the root hash of their tree.
type TreeHead struct {
	Origin string // the name of the log
	Size   int64
	Root   tlog.Hash
}

// treeName is the first line of the tree heads that package tlog formats and parses: those of the Go checksum database.
const treeName = "go.sum database tree\n"

// text returns the body of the checkpoint (c2sp.org/tlog-checkpoint).
func (h *TreeHead) text() string {
	tree := tlog.FormatTree(tlog.Tree{N: h.Size, Hash: h.Root})
	return h.Origin + "\n" + strings.TrimPrefix(string(tree), treeName)
}

var (
	errCheckpoint = errors.New("it is not a signed tree head: three lines (the log's name, the number of entries, the root hash), an empty line and a signature")
	errSignatures = errors.New("want exactly one signature")
	errCanonical  = errors.New("its signature is not in canonical base64")
	errOrigin     = errors.New("the tree head names another log than its signature")
)

// signTreeHead returns the checkpoint of a tree head.
func signTreeHead(h *TreeHead, signer note.Signer) (string, error) {
	signed, err := note.Sign(&note.Note{Text: h.text()}, signer)
	if err != nil {
		return "", fmt.Errorf("sign tree head: %w", err)
	}
	return string(signed), nil
}

// WrongKeyError is returned for a tree head that another key has signed.
type WrongKeyError struct {
	Want string // the name and id of the key that was given
	Got  string // the beginning of the signature's line, clipped
}

// Error implements error.
func (e *WrongKeyError) Error() string {
	return fmt.Sprintf("the tree head is not signed by the key %s, but by %s", e.Want, e.Got)
}

// OpenCheckpoint checks the signature of a checkpoint and returns its tree head. Each tree head has one valid form.
func OpenCheckpoint(checkpoint, vkey string) (TreeHead, error) {
	verifier, err := parseKey(vkey)
	if err != nil {
		return TreeHead{}, err
	}
	head, err := openCheckpoint(checkpoint, verifier)
	if err != nil {
		return TreeHead{}, fmt.Errorf("check tree head: %w", err)
	}
	return head, nil
}

func openCheckpoint(checkpoint string, verifier note.Verifier) (head TreeHead, err error) {
	opened, err := note.Open([]byte(checkpoint), note.VerifierList(verifier))
	if unverified, ok := errors.AsType[*note.UnverifiedNoteError](err); ok {
		signature := unverified.Note.UnverifiedSigs[0]
		return head, &WrongKeyError{keyName(verifier), fmt.Sprintf("%.100s+%08x", signature.Name, signature.Hash)}
	}
	if _, ok := errors.AsType[*note.InvalidSignatureError](err); ok {
		return head, err
	}
	if err != nil {
		return head, errCheckpoint
	}
	if len(opened.Sigs) != 1 || len(opened.UnverifiedSigs) != 0 {
		return head, errSignatures
	}
	if _, err := base64.StdEncoding.Strict().DecodeString(opened.Sigs[0].Base64); err != nil {
		return head, errCanonical
	}
	if head, err = parseTreeHead(opened.Text); err != nil {
		return head, err
	}
	if head.Origin != verifier.Name() {
		return head, errOrigin
	}
	return head, nil
}

// parseTreeHead parses the text of a checkpoint without extension lines.
func parseTreeHead(text string) (TreeHead, error) {
	origin, rest, _ := strings.Cut(text, "\n")
	tree, err := tlog.ParseTree([]byte(treeName + rest)) // what it accepts beside the canonical form, the comparison refuses
	head := TreeHead{Origin: origin, Size: tree.N, Root: tree.Hash}
	if err != nil || origin == "" || head.text() != text {
		return TreeHead{}, errCheckpoint
	}
	return head, nil
}

var errKey = errors.New("it is not a verifier key of the form NAME+ID+KEY, as basegate receipt key prints it")

// parseKey parses a verifier key. Each key has one valid form.
func parseKey(vkey string) (note.Verifier, error) {
	verifier, err := note.NewVerifier(vkey)
	if err != nil {
		return nil, fmt.Errorf("parse key: %w", errKey)
	}
	encoded, canonical := strings.CutPrefix(vkey, keyName(verifier)+"+") // the key may have a + too
	if _, err := base64.StdEncoding.Strict().DecodeString(encoded); err != nil || !canonical {
		return nil, fmt.Errorf("parse key: %w", errKey)
	}
	return verifier, nil
}

// keyName returns the name of a log with the id of its key, as verifier keys begin.
func keyName(v note.Verifier) string { return v.Name() + "+" + keyID(v) }

// keyID returns the id of a log's key: 8 hexadecimal digits, as verifier keys have them.
func keyID(v note.Verifier) string { return fmt.Sprintf("%08x", v.KeyHash()) }
