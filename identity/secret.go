package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"math/big"
	"strings"
)

const (
	secretHead   = "acs-bm-"
	secretBytes  = 32
	secretDigits = 43 // of base 62 hold 32 bytes
	prefixLength = len(secretHead) + 6

	idBytes  = 9
	idDigits = 13 // of base 62 hold 9 bytes
)

// newSecret makes a secret that nobody has had before.
func newSecret() string { return secretHead + randomDigits(secretBytes, secretDigits) }

// newID makes a short id: 72 random bits behind what it is the id of.
func newID(of string) string { return of + "_" + randomDigits(idBytes, idDigits) }

// randomDigits writes random bytes in base 62, always at the same width.
func randomDigits(bytes, width int) string {
	random := make([]byte, bytes)
	_, _ = rand.Read(random) // never fails: it ends the program before it would
	digits := new(big.Int).SetBytes(random).Text(62)
	return strings.Repeat("0", width-len(digits)) + digits
}

// prefixOf is what of a secret may be shown.
func prefixOf(secret string) string { return secret[:prefixLength] }

// wellFormed tells whether a text has the shape of a secret.
func wellFormed(text string) bool {
	if len(text) != len(secretHead)+secretDigits || text[:len(secretHead)] != secretHead {
		return false
	}
	for i := len(secretHead); i < len(text); i++ {
		c := text[i]
		if (c < '0' || '9' < c) && (c < 'A' || 'Z' < c) && (c < 'a' || 'z' < c) {
			return false
		}
	}
	return true
}

// hashOf hashes a well-formed secret.
func hashOf(secret string) hash {
	var text [len(secretHead) + secretDigits]byte
	copy(text[:], secret)
	return sha256.Sum256(text[:])
}
