package mockvllm

import (
	"math/rand/v2"
	"regexp/syntax"
	"strings"
)

// constraint is a structured output: the request's output is a text that conforms to it. The mock does not mask the
// model's tokens as vLLM does. It generates a conforming text at random and makes the output's tokens from it, so the
// text conforms and the log-probabilities are still the model's.
type constraint struct {
	kind    string // one of constraintKinds
	text    string // regex, grammar, or json as a string
	choices []string
	schema  value
	enabled bool // json_object
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

// readConstraints reads the fields that constrain the output, as far as the version knows them.
func (s *versionSpec) readConstraints(f *fieldReader, r *completionRequest) {
	if v, present := f.body.member("response_format"); present && v.kind != nullKind {
		s.readResponseFormat(f, v, r)
	}
	if v, present := f.body.member("structured_outputs"); present && v.kind != nullKind {
		if v.kind != objectKind {
			f.addError(dictType, v, "structured_outputs")
		}
		r.structuredGiven = true
		r.constraints = append(r.constraints, readConstraintMembers(f, v, "", "structured_outputs")...)
	}
	r.guided = readConstraintMembers(f, f.body, "guided_")
}

// readConstraintMembers reads the members of an object that are constraints: their names are the kinds with a prefix.
func readConstraintMembers(f *fieldReader, object value, prefix string, loc ...string) []constraint {
	var found []constraint
	for _, kind := range constraintKinds {
		v, present := object.member(prefix + kind)
		if !present || v.kind == nullKind || prefix != "" && kind == constraintJSONObject {
			continue
		}
		c := constraint{kind: kind}
		at := append(append([]string(nil), loc...), prefix+kind)
		inner := &fieldReader{body: value{kind: objectKind, members: []member{{kind, v}}}}
		switch {
		case kind == constraintJSON && v.kind == objectKind:
			c.schema = v
		case kind == constraintChoice:
			inner.stringList(kind, &c.choices)
		case kind == constraintJSONObject:
			inner.boolean(kind, true, &c.enabled)
		default:
			readField(inner, kind, false, asString, &c.text)
		}
		for _, problem := range inner.errs {
			problem.loc = append(append([]string(nil), at...), problem.loc[1:]...)
			f.errs = append(f.errs, problem)
		}
		found = append(found, c)
	}
	return found
}

// readResponseFormat reads response_format. Completions of versions without
// structured_outputs ignore json_schema.
func (s *versionSpec) readResponseFormat(f *fieldReader, v value, r *completionRequest) {
	if v.kind != objectKind {
		f.addError(dictType, v, "response_format")
		return
	}
	format, _ := v.member("type")
	switch format.text {
	case "text", "structural_tag":
	case "json_object":
		r.constraints = append(r.constraints, constraint{kind: constraintJSONObject, enabled: true})
	case "json_schema":
		if !s.jsonSchema && r.chat == nil {
			return
		}
		named, present := v.member("json_schema")
		if r.lacksJSONSchema = !present || named.kind == nullKind; r.lacksJSONSchema {
			return
		}
		schema, _ := named.member("schema")
		r.constraints = append(r.constraints, constraint{kind: constraintJSON, schema: schema})
	default:
		f.addLiteralError(format, "'text', 'json_object' or 'json_schema'", "response_format", "type")
	}
}

// constraintProblem returns the parameter and the message of vLLM's error about constraints that exclude each other, or
// are incomplete.
func (r *completionRequest) constraintProblem() (param, message string) {
	short := 0
	for _, c := range r.constraints {
		if c.kind == constraintJSON || c.kind == constraintRegex || c.kind == constraintChoice {
			short++
		}
	}
	switch {
	case r.lacksJSONSchema:
		return "response_format", "When response_format type is 'json_schema', the 'json_schema' field must be provided."
	case len(r.guided) > 1 || len(r.guided) > 0 && len(r.constraints) > 0:
		return "guided_json", "You can only use one kind of guided decoding ('guided_json', 'guided_regex' or 'guided_choice')."
	case r.structuredGiven && short > 1:
		return "structured_outputs", "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
	case len(r.constraints) > 1:
		return "structured_outputs", "You can only use one kind of structured outputs constraint but multiple are specified: " + r.constraintNames()
	case r.structuredGiven && len(r.constraints) == 0:
		return "structured_outputs", "You must use one kind of structured outputs constraint but none are specified: {}"
	}
	return "", ""
}

func (r *completionRequest) constraintNames() string {
	names := make([]string, len(r.constraints))
	for i, c := range r.constraints {
		names[i] = c.kind
	}
	return pythonStrings(names)
}

// constraint returns the request's constraint, or nil.
func (r *completionRequest) constraint() *constraint {
	for _, c := range append(r.constraints, r.guided...) {
		return &c
	}
	return nil
}

// check makes the checks of vLLM's engine, in its words.
func (c *constraint) check() *failure {
	switch {
	case c.kind == constraintChoice && len(c.choices) == 0:
		return badRequest("Choice '[]' cannot be an empty list")
	case c.kind == constraintGrammar && strings.TrimSpace(c.text) == "":
		return badRequest("structured_outputs.grammar cannot be an empty string")
	case c.kind == constraintJSON && c.schema.kind == nullKind && strings.TrimSpace(c.text) == "":
		return badRequest("structured_outputs.json cannot be an empty string")
	case c.kind == constraintJSONObject && !c.enabled:
		return badRequest("structured_outputs.json_object must be True if set; omit structured_outputs to disable structured outputs")
	}
	if _, err := c.generate(rand.New(rand.NewPCG(0, 0))); err != nil { //nolint:gosec // not security-relevant
		return badRequest("%s", err.Error())
	}
	return nil
}

// generate returns a text that conforms to the constraint.
func (c *constraint) generate(random *rand.Rand) (string, error) {
	switch c.kind {
	case constraintChoice:
		return c.choices[random.IntN(len(c.choices))], nil
	case constraintRegex:
		steps := 0
		text, err := generateRegex(c.text, random, &steps)
		if err != nil {
			return "", constraintError("Failed to transform regex into a grammar: " + err.Error())
		}
		return text, nil
	case constraintGrammar:
		g, err := parseGrammar(c.text)
		if err != nil {
			return "", constraintError("Invalid grammar specification: " + err.Error())
		}
		return g.generate(random)
	case constraintJSONObject:
		return generateJSON(value{kind: objectKind, members: []member{{"type", value{kind: stringKind, text: "object"}}}}, random)
	}
	schema := c.schema
	if schema.kind == nullKind {
		parsed, err := parsePythonJSON(c.text)
		if err != nil {
			return "", constraintError("Invalid JSON grammar specification.")
		}
		schema = parsed
	}
	return generateJSON(schema, random)
}

// maxRepeats limits how often an unbounded repetition repeats, so that outputs stay short.
const maxRepeats = 4

// maxSteps limits the work on one text, since nested repetitions and alternatives multiply. A text that needs more is
// longer than any context.
const maxSteps = 1 << 16

// generateRegex returns a text that the whole pattern matches. It adds its work to steps.
func generateRegex(pattern string, random *rand.Rand, steps *int) (string, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return "", err
	}
	w := &regexWriter{random: random, steps: steps}
	w.write(parsed)
	return w.out.String(), nil
}

// regexWriter builds a text that a pattern matches.
type regexWriter struct {
	out    strings.Builder
	random *rand.Rand
	steps  *int
}

func (w *regexWriter) write(re *syntax.Regexp) {
	if *w.steps++; *w.steps > maxSteps {
		return
	}
	least, most := 1, 1
	switch re.Op { //nolint:exhaustive // the other operators are groups and sequences, or match no text
	case syntax.OpLiteral:
		w.out.WriteString(string(re.Rune))
		return
	case syntax.OpCharClass:
		w.out.WriteRune(pickRune(re.Rune, w.random))
		return
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		w.out.WriteByte("abcdefghijklmnopqrstuvwxyz"[w.random.IntN(26)])
		return
	case syntax.OpAlternate:
		w.write(re.Sub[w.random.IntN(len(re.Sub))])
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
	for range least + w.random.IntN(most-least+1) {
		for _, sub := range re.Sub {
			w.write(sub)
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
