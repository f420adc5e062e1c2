package mockvllm

import (
	"embed"
	"io/fs"
	"slices"
	"sort"
	"strings"
	"sync"
)

//go:embed corpus
var corpusFiles embed.FS

const (
	longestContext    = 8    // tokens of history that the model uses
	documentSeparator = "%%" // alone on its line in a corpus file
	unseenWeight      = 0.05 // weight of a token that does not occur in the corpus
)

// languageModel is an n-gram model of up to longestContext tokens of history, with Witten-Bell smoothing. Every
// token has a probability above zero and all of them sum to one, so log-probabilities are finite. It is immutable, so
// all servers share one.
type languageModel struct {
	*tokenizer
	corpus   []int
	suffixes []int // suffix array: corpus positions, ordered by the tokens that follow
	unigrams []float64
}

// sharedModel builds the model on first use. There is one corpus, so there is one model.
var sharedModel = sync.OnceValue(func() *languageModel { return newLanguageModel(corpusDocuments()) })

func corpusDocuments() (documents []string) {
	names, _ := fs.Glob(corpusFiles, "corpus/*") // the pattern is valid
	for _, name := range names {
		content, err := corpusFiles.ReadFile(name)
		if err != nil {
			panic(err) // cannot fail: the folder is embedded
		}
		for document := range strings.SplitSeq(string(content), "\n"+documentSeparator+"\n") {
			documents = append(documents, strings.TrimSuffix(document, "\n"))
		}
	}
	return documents
}

func newLanguageModel(documents []string) *languageModel {
	m := &languageModel{tokenizer: newTokenizer()}
	for _, document := range documents {
		m.corpus = append(m.corpus, m.encode(document, true)...)
		m.corpus = append(m.corpus, m.eos)
	}
	m.suffixes = make([]int, len(m.corpus))
	for pos := range m.suffixes {
		m.suffixes[pos] = pos
	}
	slices.SortFunc(m.suffixes, func(a, b int) int {
		return slices.Compare(m.tokensAt(a, longestContext+1), m.tokensAt(b, longestContext+1))
	})
	m.unigrams = make([]float64, m.size())
	weight := 1 / (float64(len(m.corpus)) + unseenWeight*float64(m.size()))
	for id := range m.unigrams {
		m.unigrams[id] = unseenWeight * weight
	}
	for _, id := range m.corpus {
		if id == m.bos {
			id = m.eos // begin-of-text never follows another token, so its count goes to end-of-text
		}
		m.unigrams[id] += weight
	}
	return m
}

// tokensAt returns the corpus tokens from pos on, at most length of them.
func (m *languageModel) tokensAt(pos, length int) []int {
	return m.corpus[pos:min(pos+length, len(m.corpus))]
}

// predict writes the probability of each token to follow the history into probabilities, which has the vocabulary's
// size.
func (m *languageModel) predict(history []int, probabilities []float64) {
	var found [longestContext][]int
	orders := 0
	for orders < min(longestContext, len(history)) {
		positions := m.occurrences(history[len(history)-orders-1:])
		if len(positions) == 0 {
			break
		}
		found[orders] = positions
		orders++
	}
	var shares [longestContext]float64
	rest := 1.0
	for order := orders - 1; order >= 0; order-- {
		total, distinct := m.countContinuations(found[order], order+1)
		weight := float64(total) / float64(total+distinct)
		shares[order] = rest * weight / float64(total)
		rest *= 1 - weight
	}
	for id, p := range m.unigrams {
		probabilities[id] = rest * p
	}
	for order := range orders {
		for _, pos := range found[order] {
			if next := pos + order + 1; next < len(m.corpus) {
				probabilities[m.corpus[next]] += shares[order]
			}
		}
	}
}

// occurrences returns the corpus positions of the context, ordered by the tokens that follow.
func (m *languageModel) occurrences(context []int) []int {
	low, _ := slices.BinarySearchFunc(m.suffixes, context, func(pos int, context []int) int {
		return slices.Compare(m.tokensAt(pos, len(context)), context)
	})
	after := m.suffixes[low:]
	count := sort.Search(len(after), func(i int) bool { return !slices.Equal(m.tokensAt(after[i], len(context)), context) })
	last := len(m.corpus) - len(context)
	if count == 1 && after[0] >= last {
		return nil // the only occurrence ends the corpus, so nothing follows
	}
	return after[:count]
}

// countContinuations counts the tokens that follow a context of the given length at the positions: total and distinct.
func (m *languageModel) countContinuations(positions []int, context int) (total, distinct int) {
	previous := -1
	for _, pos := range positions {
		next := pos + context
		if next >= len(m.corpus) {
			continue
		}
		total++
		if m.corpus[next] != previous {
			distinct++
			previous = m.corpus[next]
		}
	}
	return total, distinct
}
