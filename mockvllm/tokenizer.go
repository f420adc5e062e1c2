package mockvllm

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The special tokens' texts are Llama 3's. Like there, a prompt that spells one out gets the control token.
const (
	beginOfText = "<|begin_of_text|>"
	endOfText   = "<|end_of_text|>"
)

// The learned part of the vocabulary: whole words that the corpus repeats, and fragments to build other words from.
const (
	learnedWords     = 1000
	learnedFragments = 400
	minWordCount     = 2 // a word seen less often is spelled in fragments
	longestFragment  = 5
)

// A tokenizer turns text into token ids and back without loss. Ids 0 to 255 are the bytes, so any text has an
// encoding, and none has more tokens than bytes. After them come pieces learned from the corpus and the two special
// tokens. A piece never spans a word boundary, so a prompt that ends with a word encodes like the same words within
// a longer text.
type tokenizer struct {
	pieces      []string
	ids         map[string]int
	maxPieceLen []uint8 // for two bytes, big endian: the length of the longest piece that begins with them
	bos         int
	eos         int
}

func newTokenizer(documents []string) *tokenizer {
	t := &tokenizer{ids: make(map[string]int), maxPieceLen: make([]uint8, 1<<16)}
	for b := range 256 {
		t.add(string([]byte{byte(b)}))
	}
	for _, piece := range learnPieces(documents) {
		t.add(piece)
		start := int(piece[0])<<8 | int(piece[1])
		t.maxPieceLen[start] = max(t.maxPieceLen[start], uint8(len(piece))) //nolint:gosec // countWords keeps pieces under 32 bytes
	}
	t.bos = t.add(beginOfText)
	t.eos = t.add(endOfText)
	return t
}

func (t *tokenizer) add(piece string) int {
	id := len(t.pieces)
	t.pieces = append(t.pieces, piece)
	t.ids[piece] = id
	return id
}

// size is the number of tokens in the vocabulary.
func (t *tokenizer) size() int { return len(t.pieces) }

func (t *tokenizer) special(id int) bool { return id == t.bos || id == t.eos }

// longestPiece is what vLLM's check before tokenisation multiplies the context by.
func (t *tokenizer) longestPiece() int {
	longest := 0
	for _, piece := range t.pieces {
		longest = max(longest, utf8.RuneCountInString(piece))
	}
	return longest
}

// encode takes the longest piece at each place. withBOS adds the begin-of-text token, as for a text prompt.
func (t *tokenizer) encode(text string, withBOS bool) []int {
	tokens := make([]int, 0, len(text)/3+2)
	if withBOS {
		tokens = append(tokens, t.bos)
	}
	for len(text) > 0 {
		id := t.match(text)
		tokens = append(tokens, id)
		text = text[len(t.pieces[id]):]
	}
	return tokens
}

func (t *tokenizer) match(text string) int {
	if len(text) < 2 {
		return int(text[0])
	}
	if text[0] == '<' && strings.HasPrefix(text, beginOfText) {
		return t.bos
	}
	if text[0] == '<' && strings.HasPrefix(text, endOfText) {
		return t.eos
	}
	maxLen := int(t.maxPieceLen[int(text[0])<<8|int(text[1])])
	for length := min(maxLen, len(text)); length >= 2; length-- {
		if id, ok := t.ids[text[:length]]; ok {
			return id
		}
	}
	return int(text[0])
}

// decode is the text of the tokens, special ones too, bytes that are no UTF-8 replaced.
func (t *tokenizer) decode(tokens []int) string {
	var raw []byte
	for _, id := range tokens {
		raw = append(raw, t.pieces[id]...)
	}
	text, rest := replaceInvalid(raw)
	if len(rest) > 0 {
		text += string(utf8.RuneError)
	}
	return text
}

// replaceInvalid reads UTF-8 as Python does, one U+FFFD for each longest broken sequence. What could still become a
// character once more bytes come is not text yet but the rest.
func replaceInvalid(raw []byte) (text string, rest []byte) {
	if utf8.Valid(raw) {
		return string(raw), nil
	}
	var out strings.Builder
	for len(raw) > 0 {
		r, size := utf8.DecodeRune(raw)
		if r == utf8.RuneError && size == 1 {
			if !utf8.FullRune(raw) {
				return out.String(), raw
			}
			size = invalidLength(raw)
		}
		out.WriteRune(r)
		raw = raw[size:]
	}
	return out.String(), nil
}

// invalidLength is how many bytes at the start began a character that never became one.
func invalidLength(raw []byte) int {
	for length := min(3, len(raw)-1); length > 1; length-- {
		if !utf8.FullRune(raw[:length]) {
			return length
		}
	}
	return 1
}

// A decoder turns tokens into text as they come. A character whose bytes are spread over tokens appears with the
// last of them; one that the output never completes does not appear at all, as in vLLM.
type decoder struct {
	tokenizer   *tokenizer
	skipSpecial bool
	pending     []byte
}

func (d *decoder) next(id int) string {
	if d.skipSpecial && d.tokenizer.special(id) {
		return ""
	}
	d.pending = append(d.pending, d.tokenizer.pieces[id]...)
	text, rest := replaceInvalid(d.pending)
	d.pending = append(d.pending[:0], rest...)
	return text
}

// learnPieces finds the pieces that spell the documents in few tokens. Equal documents give equal pieces in equal order.
func learnPieces(documents []string) []string {
	words := make(map[string]int)
	for _, document := range documents {
		countWords(document, words)
	}
	pieces := mostSaving(words, minWordCount, learnedWords)
	fragments := make(map[string]int)
	for word, count := range words {
		for start := range len(word) {
			for end := start + 2; end <= min(len(word), start+longestFragment); end++ {
				fragments[word[start:end]] += count
			}
		}
	}
	for _, piece := range pieces {
		delete(fragments, piece)
	}
	return append(pieces, mostSaving(fragments, minWordCount, learnedFragments)...)
}

// mostSaving are the strings that save most bytes, at most limit of them.
func mostSaving(counts map[string]int, minCount, limit int) []string {
	pieces := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b]*(len(b)-1), counts[a]*(len(a)-1)), cmp.Compare(a, b))
	})
	pieces = slices.DeleteFunc(pieces, func(piece string) bool { return len(piece) < 2 || counts[piece] < minCount })
	return pieces[:min(limit, len(pieces))]
}

// countWords counts words with the space before them, numbers of up to three digits, runs of marks and of blanks.
func countWords(text string, counts map[string]int) {
	for len(text) > 0 {
		length := wordLength(text)
		if length <= 32 {
			counts[text[:length]]++
		}
		text = text[length:]
	}
}

func wordLength(text string) int {
	first, size := utf8.DecodeRuneInString(text)
	start := 0
	if first == ' ' && len(text) > 1 {
		if next, _ := utf8.DecodeRuneInString(text[1:]); classOf(next) == letter {
			start, first, size = 1, next, utf8.RuneLen(next)
		}
	}
	kind, end, count := classOf(first), start+size, 1
	for end < len(text) && (kind != digit || count < 3) {
		next, width := utf8.DecodeRuneInString(text[end:])
		if classOf(next) != kind {
			break
		}
		end += width
		count++
	}
	return end
}

type runeClass int

const (
	letter runeClass = iota
	digit
	newline
	space
	punctuation
)

func classOf(r rune) runeClass {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsDigit(r):
		return digit
	case r == '\n':
		return newline
	case r == ' ':
		return space
	default:
		return punctuation
	}
}
