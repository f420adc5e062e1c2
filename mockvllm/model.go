package mockvllm

import (
	"embed"
	"slices"
	"strings"
	"sync"
)

//go:embed corpus
var corpusFiles embed.FS

const (
	longestContext    = 8    // tokens of history that the model looks at
	documentSeparator = "%%" // alone on its line in a corpus file
	unseenWeight      = 0.05 // what a token that the corpus never shows counts for
)

// A languageModel predicts the next token by how the corpus goes on after the longest stretches of history that it
// has in common with it, the lengths mixed by Witten and Bell's rule. Every token has a probability over zero and
// all of them sum to one, so its log-probabilities are finite. It is immutable, hence shared by all servers.
type languageModel struct {
	*tokenizer
	corpus   []int
	suffixes []int // places in the corpus, ordered by the tokens that stand there
	unigrams []float64
}

// sharedModel is built on first use: there is one corpus, so there is one model.
var sharedModel = sync.OnceValue(func() *languageModel { return newLanguageModel(corpusDocuments()) })

func corpusDocuments() []string {
	entries, err := corpusFiles.ReadDir("corpus")
	if err != nil {
		panic(err) // the folder is part of the binary
	}
	var documents []string
	for _, entry := range entries {
		content, err := corpusFiles.ReadFile("corpus/" + entry.Name())
		if err != nil {
			panic(err)
		}
		for document := range strings.SplitSeq(string(content), "\n"+documentSeparator+"\n") {
			documents = append(documents, strings.TrimSuffix(document, "\n"))
		}
	}
	return documents
}

func newLanguageModel(documents []string) *languageModel {
	m := &languageModel{tokenizer: newTokenizer(documents)}
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
			id = m.eos // a text begins once, so what begins it is no candidate within it
		}
		m.unigrams[id] += weight
	}
	return m
}

// tokensAt is what stands in the corpus at a place, at most length tokens.
func (m *languageModel) tokensAt(pos, length int) []int {
	return m.corpus[pos:min(pos+length, len(m.corpus))]
}

// predict writes the probability of every token after the history into probabilities, which has the vocabulary's
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
		trust := float64(total) / float64(total+distinct)
		shares[order] = rest * trust / float64(total)
		rest *= 1 - trust
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

// occurrences are the places at which the corpus reads like the context, ordered by what follows it there.
func (m *languageModel) occurrences(context []int) []int {
	low, _ := slices.BinarySearchFunc(m.suffixes, context, func(pos int, context []int) int {
		return slices.Compare(m.tokensAt(pos, len(context)), context)
	})
	after := m.suffixes[low:]
	count, _ := slices.BinarySearchFunc(after, context, func(pos int, context []int) int {
		if slices.Equal(m.tokensAt(pos, len(context)), context) {
			return -1
		}
		return 1
	})
	last := len(m.corpus) - len(context)
	if count == 1 && after[0] >= last {
		return nil // only the corpus's very end reads like this: nothing follows
	}
	return after[:count]
}

// countContinuations counts what follows a context of so many tokens at the places: how often, and how many different.
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
