package prompts

// ChunkBytes is the size of a chunk.
const ChunkBytes = chunkBytes

// RateBurst is what an account may store at once, in bytes.
const RateBurst = rateBurst

// Matches reports whether a text that arrives in parts contains all words.
func Matches(parts [][]byte, words []string) bool {
	m := newMatcher(words)
	for _, part := range parts {
		m.add(part)
	}
	return len(m.missing) == 0
}

// Fold exports fold.
func Fold(text string) string { return fold(text) }
