package mockvllm

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// constraint is a structured output: the request's output is a text that conforms to it. The mock does not mask the
// model's tokens as vLLM does. It generates a conforming text at random and makes the output's tokens from it, so the
// text conforms and the log-probabilities are still the model's.
type constraint struct {
	kind string // a member of structured_outputs: json, regex, choice or grammar
	rule gjson.Result
}

// anyObject is the schema of json_object.
const anyObject = `{"type":"object"}`

// constraintOf returns the constraint in response_format, structured_outputs or the older guided_* fields, or nil.
func constraintOf(fields gjson.Result) *constraint {
	format := fields.Get("response_format")
	switch {
	case format.Get("type").Str == "json_schema":
		return &constraint{"json", format.Get("json_schema.schema")}
	case format.Get("type").Str == "json_object" || fields.Get("structured_outputs.json_object").Exists():
		return &constraint{"json", gjson.Parse(anyObject)}
	}
	for _, kind := range []string{"json", "regex", "choice", "grammar"} {
		for _, field := range []string{"structured_outputs.", "guided_"} {
			if rule := fields.Get(field + kind); rule.Exists() {
				return &constraint{kind, rule}
			}
		}
	}
	return nil
}

// generate returns a text that conforms to the constraint, or the error of vLLM about a constraint that it cannot compile.
func (c *constraint) generate(random *rand.Rand) (string, *failure) {
	g := &generator{root: c.rule, random: random}
	var err error
	problem := "Failed to transform regex into a grammar"
	switch c.kind {
	case "choice":
		if len(c.rule.Array()) == 0 {
			return "", badRequest("Choice '[]' cannot be an empty list")
		}
		g.out.WriteString(g.pick(c.rule.Array()).Str)
	case "regex":
		err = g.regex(c.rule.Str)
	case "grammar":
		problem = "Invalid grammar specification"
		err = g.grammar(c.rule.Str)
	default:
		problem = "Failed to transform json schema into a grammar"
		if c.rule.Type == gjson.String {
			g.root = gjson.Parse(c.rule.Str)
		}
		err = g.json(g.root, 0)
	}
	if err != nil {
		return "", badRequest("%s: %v", problem, err)
	}
	return g.out.String(), nil
}

const (
	maxRepeats     = 4       // of an unbounded repetition, so that outputs stay short
	maxSteps       = 1 << 16 // of one text, and its bytes: repetitions multiply, and one that needs more is longer than any context
	maxSchemaDepth = 16      // beyond half of it, optional properties and items are left out
)

// generator builds a text at random.
type generator struct {
	root   gjson.Result // the schema that references refer to
	random *rand.Rand
	out    strings.Builder
	steps  int
}

// pick returns one of the options, or nothing if there are none.
func (g *generator) pick(options []gjson.Result) gjson.Result {
	if len(options) == 0 {
		return gjson.Result{}
	}
	return options[g.random.IntN(len(options))]
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

// pickRune returns a character of a class, which is a list of ranges: a printable one of ASCII if there is any.
func pickRune(ranges []rune, random *rand.Rand) rune {
	var printable []rune
	for i := 0; i+1 < len(ranges); i += 2 {
		for r := max(ranges[i], ' '); r <= min(ranges[i+1], '~'); r++ {
			printable = append(printable, r)
		}
	}
	all := slices.Concat(printable, ranges, []rune{' '}) // an empty class matches nothing
	return all[random.IntN(max(len(printable), 1))]
}

var grammarToken = regexp.MustCompile(`"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[()|?*+]|[\w-]+|\S`)

// grammar writes a text that conforms to a grammar in EBNF, of one rule.
func (g *generator) grammar(text string) error {
	_, body, ok := strings.Cut(text, "root ::=")
	if !ok {
		return errors.New("the root rule is missing")
	}
	var pattern strings.Builder
	for _, token := range grammarToken.FindAllString(body, -1) {
		if literal, err := strconv.Unquote(token); err == nil {
			token = "(?:" + regexp.QuoteMeta(literal) + ")"
		} else if token[0] != '[' && !strings.Contains("()|?*+", token) {
			return fmt.Errorf("rule %s is not defined", token)
		}
		pattern.WriteString(token)
	}
	return g.regex(pattern.String())
}

// json writes compact JSON that conforms to a schema.
func (g *generator) json(schema gjson.Result, depth int) error {
	if g.steps++; depth > maxSchemaDepth || g.steps+g.out.Len() > maxSteps {
		return errors.New("it does not end")
	}
	for _, union := range []string{"anyOf", "oneOf", "allOf"} {
		if options := schema.Get(union).Array(); len(options) > 0 {
			if depth > maxSchemaDepth/2 {
				options = options[:1]
			}
			return g.json(g.pick(options), depth+1)
		}
	}
	kind, values := g.pick(schema.Get("type").Array()).Str, schema.Get("enum").Array()
	if value := schema.Get("const"); value.Exists() {
		values = []gjson.Result{value}
	}
	ref := schema.Get("$ref")
	switch {
	case len(values) > 0:
		g.out.WriteString(g.pick(values).Raw)
	case ref.Exists():
		path := strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(ref.Str, "#"), "/"), "/", ".")
		target := g.root.Get(cmp.Or(path, "@this"))
		if !target.Exists() {
			return fmt.Errorf("cannot resolve %s", ref.Str)
		}
		return g.json(target, depth+1)
	case kind == "object" || kind == "" && schema.Get("properties").Exists():
		return g.object(schema, depth)
	case kind == "array":
		return g.array(schema, depth)
	case kind == "string":
		return g.text(schema)
	case kind == "integer" || kind == "number":
		g.number(schema)
	case kind == "boolean":
		g.out.WriteString(strconv.FormatBool(g.random.IntN(2) == 0))
	default:
		g.out.WriteString("null")
	}
	return nil
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
	inner := &generator{random: g.random}
	pattern := schema.Get("pattern")
	if err := inner.regex(cmp.Or(pattern.Str, "river|stone|bridge|Paris|winter|seven")); err != nil {
		return err
	}
	text := inner.out.String()
	if least, most := schema.Get("minLength").Uint(), schema.Get("maxLength"); !pattern.Exists() && (least > 0 || most.Exists()) {
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
