package mockvllm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
)

// grammar is a context-free grammar in EBNF as xgrammar reads it, or in Lark's notation: rules of alternatives, with
// literals, character classes, regular expressions, groups and the suffixes ?, *, +.
type grammar struct {
	rules map[string]grammarNode
	start string
}

// grammarNode is a choice between sequences.
type grammarNode struct {
	alternatives [][]grammarTerm
}

// grammarTerm is one element of a sequence, with its suffix.
type grammarTerm struct {
	literal string
	pattern string // regular expression
	rule    string
	group   *grammarNode
	suffix  byte // ?, *, + or 0
}

// maxGrammarDepth is the nesting beyond which the shortest way out is taken, and twice of it is an error.
const maxGrammarDepth = 12

var (
	ruleHead     = regexp.MustCompile(`(?m)^\s*\??([A-Za-z_][\w-]*)\s*(::=|:)`)
	grammarToken = regexp.MustCompile(`^(?:"(?:\\.|[^"\\])*"i?|'(?:\\.|[^'\\])*'|\[(?:\\.|[^\]\\])*\]|/(?:\\.|[^/\\])+/i?|[A-Za-z_][\w-]*|[()|?*+])`)
	comment      = regexp.MustCompile(`(?m)^\s*(#|//|%).*$`)
)

// parseGrammar parses a grammar. Its start rule is root or start.
func parseGrammar(text string) (*grammar, error) {
	text = comment.ReplaceAllString(text, "")
	heads := ruleHead.FindAllStringSubmatchIndex(text, -1)
	if len(heads) == 0 || strings.TrimSpace(text[:heads[0][0]]) != "" {
		return nil, errors.New("expected a rule")
	}
	g := &grammar{rules: make(map[string]grammarNode)}
	for i, head := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		p := &grammarParser{text: text[head[1]:end]}
		node, err := p.node()
		if err == nil && p.peek() != "" {
			err = fmt.Errorf("unexpected %s", p.peek())
		}
		if err != nil {
			return nil, err
		}
		name := text[head[2]:head[3]]
		g.rules[name] = node
		if name == "root" || name == "start" {
			g.start = name
		}
	}
	if g.start == "" {
		return nil, errors.New("the root rule is missing")
	}
	return g, nil
}

type grammarParser struct{ text string }

// peek returns the next token, or "" at the end. What is no token counts as one character.
func (p *grammarParser) peek() string {
	p.text = strings.TrimLeft(p.text, " \t\r\n")
	if token := grammarToken.FindString(p.text); token != "" || p.text == "" {
		return token
	}
	return p.text[:1]
}

func (p *grammarParser) node() (grammarNode, error) {
	var node grammarNode
	var sequence []grammarTerm
	for {
		token := p.peek()
		switch token {
		case "", ")":
			node.alternatives = append(node.alternatives, sequence)
			return node, nil
		case "|":
			node.alternatives = append(node.alternatives, sequence)
			sequence = nil
			p.text = p.text[1:]
			continue
		}
		term, err := p.term(token)
		if err != nil {
			return node, err
		}
		if next := p.peek(); next == "?" || next == "*" || next == "+" {
			term.suffix = next[0]
			p.text = p.text[1:]
		}
		sequence = append(sequence, term)
	}
}

func (p *grammarParser) term(token string) (grammarTerm, error) {
	if grammarToken.FindString(token) == "" || strings.ContainsAny(token[:1], "?*+") {
		return grammarTerm{}, fmt.Errorf("unexpected %s", token)
	}
	p.text = p.text[len(token):]
	switch token[0] {
	case '(':
		group, err := p.node()
		if err == nil && p.peek() != ")" {
			err = errors.New("expected )")
		}
		if err != nil {
			return grammarTerm{}, err
		}
		p.text = p.text[1:]
		return grammarTerm{group: &group}, nil
	case '"', '\'':
		body := strings.TrimSuffix(token, "i")
		literal, err := strconv.Unquote(`"` + strings.ReplaceAll(body[1:len(body)-1], `\'`, `'`) + `"`)
		return grammarTerm{literal: literal}, err
	case '[':
		return grammarTerm{pattern: token}, nil
	case '/':
		return grammarTerm{pattern: strings.Trim(strings.TrimSuffix(token, "i"), "/")}, nil
	}
	return grammarTerm{rule: token}, nil
}

// generate returns a text that the grammar derives.
func (g *grammar) generate(random *rand.Rand) (string, error) {
	w := &grammarWriter{rules: g.rules, random: random}
	err := w.write(g.rules[g.start], 0)
	return w.out.String(), err
}

// grammarWriter builds a text that a grammar derives.
type grammarWriter struct {
	rules  map[string]grammarNode
	random *rand.Rand
	out    strings.Builder
	steps  int
}

func (w *grammarWriter) write(node grammarNode, depth int) error {
	if w.steps++; depth > 2*maxGrammarDepth || w.steps > maxSteps {
		return constraintError("Invalid grammar specification: the recursion does not end")
	}
	chosen := node.alternatives[w.random.IntN(len(node.alternatives))]
	if depth > maxGrammarDepth {
		for _, other := range node.alternatives {
			if weight(other) < weight(chosen) {
				chosen = other
			}
		}
	}
	for _, term := range chosen {
		for range w.repeats(term, depth) {
			if err := w.writeTerm(term, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// weight estimates how far a sequence is from its end: rules count most.
func weight(sequence []grammarTerm) int {
	total := 0
	for _, term := range sequence {
		if term.rule != "" || term.group != nil {
			total += 100
		}
		total++
	}
	return total
}

// repeats returns how often a term occurs: beyond maxGrammarDepth as rarely as possible.
func (w *grammarWriter) repeats(t grammarTerm, depth int) int {
	least, most := 1, 1
	switch t.suffix {
	case '?':
		least = 0
	case '*':
		least, most = 0, maxRepeats
	case '+':
		most = maxRepeats
	}
	if depth > maxGrammarDepth {
		return least
	}
	return least + w.random.IntN(most-least+1)
}

func (w *grammarWriter) writeTerm(t grammarTerm, depth int) error {
	switch {
	case t.group != nil:
		return w.write(*t.group, depth)
	case t.rule != "":
		node, ok := w.rules[t.rule]
		if !ok {
			return constraintError("Invalid grammar specification: rule " + t.rule + " is not defined")
		}
		return w.write(node, depth)
	case t.pattern != "":
		text, err := generateRegex(t.pattern, w.random, &w.steps)
		w.out.WriteString(text)
		return err
	}
	w.out.WriteString(t.literal)
	return nil
}
