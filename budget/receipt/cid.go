package receipt

import (
	"crypto/sha256"
	"encoding/base32"
	"hash"
)

// cidPrefix begins every CIDv1 of raw bytes by their SHA-256: the version, the multicodec "raw", the multihash "sha2-256"
// and the length of the digest.
const cidPrefix = "\x01\x55\x12\x20"

// multibase is base32 in lower case without padding, which the prefix "b" announces.
var multibase = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// formatCID returns the address of the content with a SHA-256. The format is constant but for the digest, so it needs none
// of the nine modules that the library for CIDs brings.
func formatCID(digest []byte) string {
	return "ipfs://b" + multibase.EncodeToString(append([]byte(cidPrefix), digest...))
}

// cidOf returns the address of a nonce followed by a content.
func cidOf(nonce Hash, content []byte) string {
	h := newCIDHash(nonce)
	h.Write(content)
	return formatCID(h.Sum(nil))
}

func newCIDHash(nonce Hash) hash.Hash {
	h := sha256.New()
	h.Write(nonce[:])
	return h
}
