package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"math/big"
	"strings"
)

const (
	secretTag    = "acs-bm-" // every key's secret begins with it
	secretBytes  = 32
	secretDigits = 43                 // base-62 digits for 32 bytes
	prefixLength = len(secretTag) + 6 // of Key.Prefix, in bytes

	idBytes  = 9
	idDigits = 13 // base-62 digits for 9 bytes

	tokenDigits = secretDigits // length of a session's or an invitation's token, in bytes
)

type secretHash [sha256.Size]byte

func newSecret() string { return secretTag + randomBase62(secretBytes, secretDigits) }

// newID returns a short id: 72 random bits after the kind, such as "key_…".
func newID(kind string) string { return kind + "_" + randomBase62(idBytes, idDigits) }

func newToken() string { return randomBase62(secretBytes, tokenDigits) }

// randomBase62 encodes random bytes in base 62, padded to width.
func randomBase62(bytes, width int) string {
	random := make([]byte, bytes)
	_, _ = rand.Read(random) // never fails: crypto/rand ends the program instead
	digits := new(big.Int).SetBytes(random).Text(62)
	return strings.Repeat("0", width-len(digits)) + digits
}

// prefixOf returns the part of a secret that may be shown.
func prefixOf(secret string) string { return secret[:prefixLength] }

// isWellFormed reports whether a text has the form of a key's secret.
func isWellFormed(text string) bool {
	if len(text) != len(secretTag)+secretDigits || text[:len(secretTag)] != secretTag {
		return false
	}
	for i := len(secretTag); i < len(text); i++ {
		c := text[i]
		if (c < '0' || '9' < c) && (c < 'A' || 'Z' < c) && (c < 'a' || 'z' < c) {
			return false
		}
	}
	return true
}

// hashSecret hashes a well-formed secret without allocating.
func hashSecret(secret string) secretHash {
	var text [len(secretTag) + secretDigits]byte
	copy(text[:], secret)
	return sha256.Sum256(text[:])
}

// hashToken returns the hash under which the database stores a token.
func hashToken(token string) []byte {
	h := sha256.Sum256([]byte(token))
	return h[:]
}
