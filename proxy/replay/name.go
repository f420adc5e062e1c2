package replay

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const secretBytes = 32

// Name is a keyed hash of a request and the server that has responded to it.
type Name [sha256.Size]byte

// ignored are the fields that change nothing in a response.
var ignored = []string{"user", "prompt_cache_key"}

// appendRequest appends the canonical form of a request.
func appendRequest(dst []byte, r *Request) ([]byte, error) {
	for _, part := range []string{r.Account, r.Endpoint, r.Checkpoint, r.Adapter} {
		dst = appendPart(dst, part)
	}
	dst = binary.AppendVarint(dst, r.MaxTokens)
	return appendBody(dst, r)
}

// appendPart appends a text with its length, so that no two lists of texts are the same bytes.
func appendPart(dst []byte, part string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(part))), part...)
}

// field is a field of a body.
type field struct {
	name  string
	value []byte
}

// appendBody appends the canonical form of a body: its fields sorted by name, with the checkpoint as the model, without those that
// change nothing. Below them the order stays, since vLLM follows that of a schema's properties. There is no white space, strings
// have as few escapes as possible, and numbers stay as they were written: a seed above 2⁵³ has no other exact form.
func appendBody(dst []byte, r *Request) ([]byte, error) {
	fields := make([]field, 0, 16)
	size := 2
	for name, value := range r.Fields {
		if !slices.Contains(ignored, name) {
			fields = append(fields, field{name, value})
			size += len(name) + len(value) + len(`"":,`)
		}
	}
	slices.SortFunc(fields, func(a, b field) int { return strings.Compare(a.name, b.name) })
	dst = append(slices.Grow(dst, size+len(r.Checkpoint)), '{')
	for i, f := range fields {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = jsontext.AppendQuote(dst, f.name); err != nil {
			return nil, fmt.Errorf("name a response: %w", err)
		}
		dst = append(dst, ':')
		if f.name == "model" {
			dst, err = jsontext.AppendQuote(dst, r.Checkpoint)
		} else {
			dst, err = appendValue(dst, f.value)
		}
		if err != nil {
			return nil, fmt.Errorf("name a response: %w", err)
		}
	}
	return append(dst, '}'), nil
}

// appendValue appends a value in canonical form. A string without escapes has it already, and is not parsed again; nor is a number
// or a list of token ids.
func appendValue(dst, value []byte) ([]byte, error) {
	others := " \t\r\n\"\\"
	if value[0] == '"' {
		others = `\`
	}
	if !bytes.ContainsAny(value, others) {
		return append(dst, value...), nil
	}
	formatted := jsontext.Value(bytes.Clone(value))
	err := formatted.Format(jsontext.PreserveRawStrings(false), jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false),
		jsontext.ReorderRawObjects(false), jsontext.Multiline(false))
	return append(dst, formatted...), err
}

// nameOf returns the name of the response of a server.
func (c *Call) nameOf(secret []byte, server Server) (name Name) {
	if c.named == server && c.name != (Name{}) { // Find has looked for it, and Keep stores it
		return c.name
	}
	h := hmac.New(sha256.New, secret)
	h.Write(appendPart(appendPart([]byte("basegate replay name\n"), server.Version), server.GPU))
	h.Write(c.material)
	h.Sum(name[:0])
	c.named, c.name = server, name
	return name
}

// cipherOf returns the cipher of the response of a server. Its key comes from the request: the secret alone opens nothing. A
// response that replaces another one has the same key, so nonces are random.
func (c *Call) cipherOf(secret []byte, server Server) (cipher.AEAD, error) {
	const bits256 = 32
	info := appendPart(appendPart([]byte("basegate replay response\n"), server.Version), server.GPU)
	key, err := hkdf.Key(sha256.New, c.material, secret, string(info), bits256)
	if err != nil {
		return nil, fmt.Errorf("derive the key of a response: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("derive the key of a response: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// seal returns an encrypted response.
func (c *Call) seal(secret []byte, server Server, name Name, r *Response) ([]byte, error) {
	aead, err := c.cipherOf(secret, server)
	if err != nil {
		return nil, err
	}
	origin, err := json.Marshal(&r.Origin)
	if err != nil {
		return nil, fmt.Errorf("encode a response: %w", err)
	}
	plain := make([]byte, 0, binary.MaxVarintLen64+len(origin)+len(r.Body)+aead.Overhead())
	plain = append(appendPart(plain, string(origin)), r.Body...)
	return aead.Seal(plain[:0], nil, plain, name[:]), nil //nolint:gosec // the cipher makes the nonce
}

// errUnusable is returned for an object that is not the response of its name.
var errUnusable = errors.New("the object is not as it was written")

// open returns the response in an object, in whose place it is decrypted.
func (c *Call) open(secret []byte, server Server, name Name, sealed []byte) (*Response, error) {
	aead, err := c.cipherOf(secret, server)
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(sealed[:0], nil, sealed, name[:])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnusable, err)
	}
	length, n := binary.Uvarint(plain)
	if n <= 0 || length > uint64(len(plain)-n) {
		return nil, errUnusable
	}
	r := &Response{Body: plain[n+int(length):]}
	if err := json.Unmarshal(plain[n:n+int(length)], &r.Origin); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnusable, err)
	}
	return r, nil
}
