package receipt

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"hash"
	"sync"

	"basegate/proxy/stream"
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

// newNonce returns 32 random bytes.
func newNonce() (n Hash) {
	rand.Read(n[:]) // never fails
	return n
}

// Answer computes the CID of an answer while it is sent. The zero value is not usable; see Draft.
type Answer struct {
	hash   hash.Hash
	events bool // a payload has been written
}

// Write adds bytes of a plain answer.
func (a *Answer) Write(p []byte) { a.hash.Write(p) }

// blockSize is how many bytes of short payloads are hashed by one call.
const blockSize = 4 << 10

// blocks hold payloads until they are hashed.
var blocks = sync.Pool{New: func() any { b := make([]byte, 0, blockSize); return &b }}

// WriteEvents adds the payloads of events of a stream, as the client receives them.
func (a *Answer) WriteEvents(events []byte) {
	pooled := blocks.Get().(*[]byte) //nolint:errcheck // the pool holds nothing else
	block := (*pooled)[:0]
	for payload := range stream.Payloads(events) {
		if len(block)+1+len(payload) > blockSize {
			a.hash.Write(block)
			block = block[:0]
		}
		if a.events {
			block = append(block, '\n')
		}
		a.events = true
		if len(block)+len(payload) > blockSize {
			a.hash.Write(block)
			a.hash.Write(payload)
			block = block[:0]
			continue
		}
		block = append(block, payload...)
	}
	a.hash.Write(block)
	blocks.Put(pooled)
}
