package mockvllm

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// constraint is what an output conforms to. The mock does not mask the model's tokens as vLLM does: it makes the output's tokens of
// the simplest conforming text, so the log-probabilities are still the model's.
type constraint struct {
	kind string // a member of structured_outputs: json, regex, choice or grammar
	rule gjson.Result
}

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
func (c *constraint) generate() (string, *failure) {
	g := &generator{root: c.rule}
	var err error
	problem := "Failed to transform regex into a grammar"
	switch c.kind {
	case "choice":
		if len(c.rule.Array()) == 0 {
			return "", badRequest("Choice '[]' cannot be an empty list")
		}
		g.out.WriteString(first(c.rule).Str)
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
	maxSteps         = 1 << 16 // of one text, and its bytes: repetitions multiply, and one that needs more is longer than any context
	maxSchemaDepth   = 16
	maxOptionalDepth = 4 // optional properties that are deeper are left out, so that a recursive schema ends
)

// generator builds the simplest text: the first of the options, the fewest repetitions.
type generator struct {
	root  gjson.Result // the schema that references refer to
	out   strings.Builder
	steps int
}

// first returns the first of an array's elements, a value that is no array, or nothing.
func first(options gjson.Result) gjson.Result {
	return append(options.Array(), gjson.Result{})[0]
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
	if g.steps++; g.steps+g.out.Len() > maxSteps {
		return
	}
	count := 1
	switch re.Op { //nolint:exhaustive // the other operators are groups and sequences, or match no text
	case syntax.OpLiteral:
		g.out.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		g.out.WriteRune(runeOf(re.Rune))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		g.out.WriteByte('a')
	case syntax.OpAlternate:
		g.match(re.Sub[0])
		return
	case syntax.OpStar, syntax.OpQuest:
		return
	case syntax.OpRepeat:
		count = re.Min
	}
	for range count {
		for _, sub := range re.Sub {
			g.match(sub)
		}
	}
}

// runeOf returns a character of a class, which is a list of ranges: a printable one of ASCII if there is any.
func runeOf(ranges []rune) rune {
	for i := 0; i+1 < len(ranges); i += 2 {
		if r := max(ranges[i], ' '); r <= min(ranges[i+1], '~') {
			return r
		}
	}
	return slices.Concat(ranges, []rune{' '})[0] // an empty class matches nothing
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
	if g.steps++; g.steps+g.out.Len() > maxSteps || depth > maxSchemaDepth {
		return errors.New("it does not end")
	}
	for _, union := range []string{"anyOf", "oneOf", "allOf"} {
		options := schema.Get(union).Array()
		if len(options) == 0 {
			continue
		}
		if depth > maxOptionalDepth && union != "allOf" { // null often comes last
			return g.json(options[len(options)-1], depth+1)
		}
		return g.json(options[0], depth+1)
	}
	kind, value, ref := first(schema.Get("type")).Str, schema.Get("const"), schema.Get("$ref")
	if !value.Exists() {
		value = first(schema.Get("enum"))
	}
	switch {
	case value.Exists():
		g.out.WriteString(value.Raw)
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
		g.out.WriteString(cmp.Or(schema.Get("minimum").Raw, schema.Get("maximum").Raw, "7"))
	case kind == "boolean":
		g.out.WriteString("true")
	default:
		g.out.WriteString("null")
	}
	return nil
}

// object writes the properties in the schema's order, then the required ones that it does not describe.
func (g *generator) object(schema gjson.Result, depth int) error {
	properties, names := schema.Get("properties"), schema.Get("required").Array()
	if depth <= maxOptionalDepth {
		names = append(properties.Get("@keys").Array(), names...)
	}
	described, written, separator := properties.Map(), make(map[string]bool), "{"
	for _, name := range names {
		if written[name.Str] {
			continue
		}
		g.out.WriteString(separator + string(appendString(nil, name.Str)) + ":")
		if err := g.json(described[name.Str], depth+1); err != nil {
			return err
		}
		written[name.Str], separator = true, ","
	}
	g.out.WriteString(strings.TrimPrefix(separator, ",") + "}")
	return nil
}

func (g *generator) array(schema gjson.Result, depth int) error {
	g.out.WriteByte('[')
	for i := range schema.Get("minItems").Uint() {
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

func (g *generator) text(schema gjson.Result) (err error) {
	inner, least, most := new(generator), schema.Get("minLength"), schema.Get("maxLength")
	switch pattern := schema.Get("pattern"); {
	case pattern.Exists():
		err = inner.regex(pattern.Str)
	case least.Exists() || most.Exists():
		inner.out.WriteString(strings.Repeat("s", int(min(least.Uint(), maxSteps))))
	default:
		inner.out.WriteString("river")
	}
	g.out.Write(appendString(nil, inner.out.String()))
	return err
}
