package mockvllm

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// constraint is a structured output: the request's output is a text that conforms to it. The mock does not mask the
// model's tokens as vLLM does. It generates a conforming text at random and makes the output's tokens from it, so the
// text conforms and the log-probabilities are still the model's.
type constraint struct {
	kind string // one of constraintKinds
	rule gjson.Result
}

// Kinds of constraint, named as the members of structured_outputs.
const (
	constraintJSON       = "json"
	constraintRegex      = "regex"
	constraintChoice     = "choice"
	constraintGrammar    = "grammar"
	constraintJSONObject = "json_object"
)

var constraintKinds = []string{constraintJSON, constraintRegex, constraintChoice, constraintGrammar, constraintJSONObject}

// constraintError is vLLM's message about a constraint that it cannot compile.
type constraintError string

// Error implements error.
func (e constraintError) Error() string { return string(e) }

// anyObject is the schema of json_object.
const anyObject = `{"type":"object"}`

// constraintOf returns the constraint in response_format, structured_outputs or the older guided_* fields, or nil.
func constraintOf(fields gjson.Result) *constraint {
	switch format := fields.Get("response_format"); format.Get("type").Str {
	case "json_object":
		return &constraint{constraintJSONObject, gjson.Result{}}
	case "json_schema":
		return &constraint{constraintJSON, format.Get("json_schema.schema")}
	}
	for _, kind := range constraintKinds {
		for _, field := range []string{"structured_outputs.", "guided_"} {
			if rule := fields.Get(field + kind); rule.Exists() {
				return &constraint{kind, rule}
			}
		}
	}
	return nil
}

// generate returns a text that conforms to the constraint, or the error of vLLM about a constraint that it cannot compile.
func (c *constraint) generate(random *rand.Rand) (string, error) {
	g := &generator{root: c.rule, random: random}
	var err error
	switch c.kind {
	case constraintChoice:
		choices := c.rule.Array()
		if len(choices) == 0 {
			return "", constraintError("Choice '[]' cannot be an empty list")
		}
		return choices[random.IntN(len(choices))].Str, nil
	case constraintRegex:
		if err = g.regex(c.rule.Str); err != nil {
			err = constraintError("Failed to transform regex into a grammar: " + err.Error())
		}
	case constraintGrammar:
		var pattern string
		if pattern, err = grammarPattern(c.rule.Str); err == nil {
			err = g.regex(pattern)
		}
		if err != nil {
			err = constraintError("Invalid grammar specification: " + err.Error())
		}
	case constraintJSONObject:
		err = g.json(gjson.Parse(anyObject), 0)
	default:
		if c.rule.Type == gjson.String {
			g.root = gjson.Parse(c.rule.Str)
		}
		if err = g.json(g.root, 0); err != nil {
			err = constraintError("Failed to transform json schema into a grammar: " + err.Error())
		}
	}
	return g.out.String(), err
}

const (
	maxRepeats     = 4       // of an unbounded repetition, so that outputs stay short
	maxSteps       = 1 << 16 // of one text: repetitions multiply, and a text that needs more is longer than any context
	maxSchemaDepth = 16      // beyond half of it, optional properties and items are left out
)

// generator builds a text at random.
type generator struct {
	root   gjson.Result // the schema that references refer to
	random *rand.Rand
	out    strings.Builder
	steps  int
}

// regex writes a text that the whole pattern matches.
func (g *generator) regex(pattern string) error {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err == nil {
		g.match(parsed)
	}
	return err
}

func (g *generator) match(re *syntax.Regexp) {
	if g.steps++; g.steps > maxSteps {
		return
	}
	least, most := 1, 1
	switch re.Op { //nolint:exhaustive // the other operators are groups and sequences, or match no text
	case syntax.OpLiteral:
		g.out.WriteString(string(re.Rune))
		return
	case syntax.OpCharClass:
		g.out.WriteRune(pickRune(re.Rune, g.random))
		return
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		g.out.WriteByte("abcdefghijklmnopqrstuvwxyz"[g.random.IntN(26)])
		return
	case syntax.OpAlternate:
		g.match(re.Sub[g.random.IntN(len(re.Sub))])
		return
	case syntax.OpStar:
		least, most = 0, maxRepeats
	case syntax.OpPlus:
		most = maxRepeats
	case syntax.OpQuest:
		least = 0
	case syntax.OpRepeat:
		if least, most = re.Min, re.Max; most < 0 {
			most = least + maxRepeats
		}
	}
	for range least + g.random.IntN(most-least+1) {
		for _, sub := range re.Sub {
			g.match(sub)
		}
	}
}

// pickRune returns a character of a class, which is a list of ranges. It prefers printable ASCII.
func pickRune(ranges []rune, random *rand.Rand) rune {
	var printable []rune
	for i := 0; i+1 < len(ranges); i += 2 {
		for r := max(ranges[i], ' '); r <= min(ranges[i+1], '~'); r++ {
			printable = append(printable, r)
		}
	}
	if len(printable) > 0 {
		return printable[random.IntN(len(printable))]
	}
	if len(ranges) == 0 {
		return ' ' // an empty class matches nothing
	}
	return ranges[0]
}

var grammarToken = regexp.MustCompile(`"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|/(?:\\.|[^/\\])+/|[()|?*+]|[\w-]+|\S`)

// grammarPattern turns a grammar of one rule, root or start, into a regular expression. It is in EBNF or in Lark's notation.
func grammarPattern(text string) (string, error) {
	head, body, ok := strings.Cut(text, ":")
	if head = strings.TrimSpace(head); !ok || head != "root" && head != "start" {
		return "", errors.New("the root rule is missing")
	}
	var out strings.Builder
	for _, token := range grammarToken.FindAllString(strings.TrimPrefix(body, ":="), -1) {
		switch {
		case token[0] == '"':
			literal, err := strconv.Unquote(token)
			if err != nil {
				return "", err
			}
			token = "(?:" + regexp.QuoteMeta(literal) + ")"
		case token[0] == '/':
			token = "(?:" + strings.Trim(token, "/") + ")"
		case token[0] != '[' && !strings.Contains("()|?*+", token):
			return "", fmt.Errorf("rule %s is not defined", token)
		}
		out.WriteString(token)
	}
	return out.String(), nil
}

// json writes compact JSON that conforms to a schema.
func (g *generator) json(schema gjson.Result, depth int) (err error) {
	if g.steps++; depth > maxSchemaDepth || g.steps > maxSteps {
		return errors.New("it does not end")
	}
	for _, union := range []string{"anyOf", "oneOf", "allOf"} {
		if options := schema.Get(union).Array(); len(options) > 0 {
			chosen := options[g.random.IntN(len(options))]
			if depth > maxSchemaDepth/2 {
				chosen = options[0]
			}
			return g.json(chosen, depth+1)
		}
	}
	kind := schema.Get("type").Str
	if kinds := schema.Get("type").Array(); len(kinds) > 0 {
		kind = kinds[g.random.IntN(len(kinds))].Str
	}
	options, ref := schema.Get("enum").Array(), schema.Get("$ref")
	switch {
	case schema.Get("const").Exists():
		g.out.WriteString(schema.Get("const").Raw)
	case len(options) > 0:
		g.out.WriteString(options[g.random.IntN(len(options))].Raw)
	case ref.Exists():
		path := strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(ref.Str, "#"), "/"), "/", ".")
		target := g.root.Get(cmp.Or(path, "@this"))
		if !target.Exists() {
			return fmt.Errorf("cannot resolve %s", ref.Str)
		}
		err = g.json(target, depth+1)
	case kind == "object" || kind == "" && schema.Get("properties").Exists():
		err = g.object(schema, depth)
	case kind == "array":
		err = g.array(schema, depth)
	case kind == "string":
		err = g.text(schema)
	case kind == "integer" || kind == "number":
		g.number(schema)
	case kind == "boolean":
		g.out.WriteString(strconv.FormatBool(g.random.IntN(2) == 0))
	default:
		g.out.WriteString("null")
	}
	return err
}

// object writes the required properties and about half of the others, in the schema's order.
func (g *generator) object(schema gjson.Result, depth int) (err error) {
	required := make(map[string]bool)
	for _, name := range schema.Get("required").Array() {
		required[name.Str] = true
	}
	separator := "{"
	write := func(name string, property gjson.Result) bool {
		g.out.WriteString(separator + string(appendString(nil, name)) + ":")
		separator = ","
		err = g.json(property, depth+1)
		return err == nil
	}
	schema.Get("properties").ForEach(func(name, property gjson.Result) bool {
		optional := !required[name.Str]
		delete(required, name.Str)
		return optional && (depth > maxSchemaDepth/2 || g.random.IntN(2) == 0) || write(name.Str, property)
	})
	for _, name := range schema.Get("required").Array() {
		if required[name.Str] && err == nil { // not described
			write(name.Str, gjson.Result{})
		}
	}
	g.out.WriteString(strings.TrimPrefix(separator, ",") + "}")
	return err
}

func (g *generator) array(schema gjson.Result, depth int) error {
	least := schema.Get("minItems").Uint()
	count := least + g.random.Uint64N(maxRepeats)
	if most := schema.Get("maxItems"); most.Exists() || depth > maxSchemaDepth/2 {
		count = max(least, min(count, most.Uint()))
	}
	g.out.WriteByte('[')
	for i := range count {
		if i > 0 {
			g.out.WriteByte(',')
		}
		if err := g.json(schema.Get("items"), depth+1); err != nil {
			return err
		}
	}
	g.out.WriteByte(']')
	return nil
}

func (g *generator) text(schema gjson.Result) error {
	words := []string{"river", "stone", "bridge", "Paris", "winter", "seven"}
	text := words[g.random.IntN(len(words))]
	if pattern := schema.Get("pattern"); pattern.Exists() {
		inner := &generator{random: g.random}
		if err := inner.regex(pattern.Str); err != nil {
			return err
		}
		text = inner.out.String()
	} else if least, most := schema.Get("minLength").Uint(), schema.Get("maxLength"); least > 0 || most.Exists() {
		text += strings.Repeat("s", int(min(least, maxSteps)))
		text = text[:max(min(uint64(len(text)), most.Uint()), min(least, maxSteps))]
	}
	g.out.Write(appendString(nil, text))
	return nil
}

// number writes an integer within the bounds, or the lower bound if that is a fraction.
func (g *generator) number(schema gjson.Result) {
	lower, upper := schema.Get("minimum"), schema.Get("maximum")
	least, most := lower.Int(), upper.Int()
	switch {
	case strings.Contains(lower.Raw, "."):
		g.out.WriteString(lower.Raw)
		return
	case !upper.Exists():
		most = least + 99
	case !lower.Exists():
		least = most - 99
	}
	g.out.WriteString(strconv.FormatInt(least+g.random.Int64N(min(max(most-least, 0), 1<<53)+1), 10))
}
