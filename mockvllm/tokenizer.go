package mockvllm

import (
	_ "embed"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The special tokens are Llama 3's. As there, a prompt that contains their text gets the control token.
const (
	beginOfText = "<|begin_of_text|>"
	endOfText   = "<|end_of_text|>"
)

// vocabulary holds the pieces, quoted as in Go: the words that the corpus repeats, and fragments for all other words, those
// that save the most bytes first.
//
//go:embed vocabulary.txt
var vocabulary string

// tokenizer encodes text as token ids and decodes it without loss: ids 0 to 255 are the bytes, then follow the vocabulary and the two
// special tokens. A piece never spans a word boundary, so words have the same tokens at the end of a prompt as within a longer text.
type tokenizer struct {
	pieces      []string
	ids         map[string]int
	maxPieceLen []uint8 // by first two bytes, big-endian: length of the longest piece
	bos         int
	eos         int
}

func newTokenizer() *tokenizer {
	t := &tokenizer{ids: make(map[string]int), maxPieceLen: make([]uint8, 1<<16)}
	for b := range 256 {
		t.add(string([]byte{byte(b)}))
	}
	for line := range strings.Lines(vocabulary) {
		piece, err := strconv.Unquote(strings.TrimSuffix(line, "\n"))
		if err != nil {
			panic(err) // cannot fail: the file is embedded
		}
		t.add(piece)
		start := int(piece[0])<<8 | int(piece[1])
		t.maxPieceLen[start] = max(t.maxPieceLen[start], uint8(len(piece)))
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

func (t *tokenizer) size() int { return len(t.pieces) }

// longestPiece returns the length of the longest token in characters, a factor of vLLM's check before tokenisation.
func (t *tokenizer) longestPiece() int {
	longest := 0
	for _, piece := range t.pieces {
		longest = max(longest, utf8.RuneCountInString(piece))
	}
	return longest
}

// encode matches the longest piece at each position. withBOS prepends begin-of-text, as for a text prompt.
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

// decode returns the text of the tokens, including special ones, with invalid UTF-8 replaced.
func (t *tokenizer) decode(tokens []int) string {
	var raw []byte
	for _, id := range tokens {
		raw = append(raw, t.pieces[id]...)
	}
	return strings.ToValidUTF8(string(raw), string(utf8.RuneError))
}

// decoder decodes tokens incrementally. A character whose bytes are spread over tokens appears with the last of
// them; a character that the output never completes does not appear, as in vLLM.
type decoder struct {
	tokenizer   *tokenizer
	skipSpecial bool
	pending     []byte
}

func (d *decoder) next(id int) string {
	if d.skipSpecial && (id == d.tokenizer.bos || id == d.tokenizer.eos) {
		return ""
	}
	d.pending = append(d.pending, d.tokenizer.pieces[id]...)
	end := len(d.pending)
	for start := end - 1; start >= max(0, end-utf8.UTFMax+1); start-- {
		if !utf8.FullRune(d.pending[start:]) {
			end = start
			break
		}
	}
	text := strings.ToValidUTF8(string(d.pending[:end]), string(utf8.RuneError))
	d.pending = append(d.pending[:0], d.pending[end:]...)
	return text
}
