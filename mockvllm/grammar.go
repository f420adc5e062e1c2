package mockvllm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
)

// A grammar is a context-free grammar in EBNF as xgrammar reads it, or in Lark's notation: rules of alternatives, with
// literals, character classes, regular expressions, groups and the suffixes ?, *, +.
type grammar struct {
	rules map[string]grammarNode
	start string
}

// A grammarNode is a choice between sequences.
type grammarNode struct {
	alternatives [][]grammarTerm
}

// A grammarTerm is one element of a sequence, with its suffix.
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
	var out strings.Builder
	err := g.write(&out, g.rules[g.start], random, 0)
	return out.String(), err
}

func (g *grammar) write(out *strings.Builder, node grammarNode, random *rand.Rand, depth int) error {
	if depth > 2*maxGrammarDepth {
		return constraintError("Invalid grammar specification: the recursion does not end")
	}
	chosen := node.alternatives[random.IntN(len(node.alternatives))]
	if depth > maxGrammarDepth {
		for _, other := range node.alternatives {
			if weight(other) < weight(chosen) {
				chosen = other
			}
		}
	}
	for _, term := range chosen {
		for range term.repeats(random, depth) {
			if err := g.writeTerm(out, term, random, depth+1); err != nil {
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

func (t grammarTerm) repeats(random *rand.Rand, depth int) int {
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
	return least + random.IntN(most-least+1)
}

func (g *grammar) writeTerm(out *strings.Builder, t grammarTerm, random *rand.Rand, depth int) error {
	switch {
	case t.group != nil:
		return g.write(out, *t.group, random, depth)
	case t.rule != "":
		node, ok := g.rules[t.rule]
		if !ok {
			return constraintError("Invalid grammar specification: rule " + t.rule + " is not defined")
		}
		return g.write(out, node, random, depth)
	case t.pattern != "":
		text, err := generateRegex(t.pattern, random)
		out.WriteString(text)
		return err
	}
	out.WriteString(t.literal)
	return nil
}
