package validate

import "slices"

// schema is what the body of one endpoint may contain.
type schema struct {
	fields   []fieldID
	table    *[allFields]field // the rows of the fields
	byName   map[string]fieldID
	required []fieldID
	refused  map[string]string // see refusedFields
	advice   map[string]string // fields that are refused with a sentence that says what is served in their place
	example  string            // of a body, for the message about one that is no object

	conflicts []Conflict // in the order in which they are reported
	prompt    fieldID    // what the backend reads
}

var (
	completion = &schema{
		table: &fields, required: []fieldID{fieldModel, fieldPrompt}, refused: refusedFields, example: `{"model": …, "prompt": …}`,
		advice: adviceOfCompletion, conflicts: completionConflicts, prompt: fieldPrompt,
	}
	chat = &schema{
		fields: chatFields, table: &fields, required: []fieldID{fieldModel, fieldMessages}, refused: refusedFields, advice: adviceOfChat,
		example: `{"model": …, "messages": […]}`, conflicts: chatConflicts, prompt: fieldMessages,
	}
	tokenize = &schema{
		table: &fields, fields: []fieldID{fieldModel, fieldText, fieldAddSpecialTokens, fieldReturnTokenStrs},
		required: []fieldID{fieldModel, fieldText}, refused: refusedOfTokenize, example: `{"model": …, "prompt": …}`, prompt: fieldText,
	}
	detokenize = &schema{
		table: &fields, fields: []fieldID{fieldModel, fieldTokens},
		required: []fieldID{fieldModel, fieldTokens}, example: `{"model": …, "tokens": …}`, prompt: fieldTokens,
	}
)

// refusedOfTokenize are the fields of vLLM's /tokenize that this gateway does not take: base models have no chat template.
var refusedOfTokenize = map[string]string{
	"add_generation_prompt":  "",
	"chat_template":          "",
	"chat_template_kwargs":   "",
	"continue_final_message": "",
	"messages":               "prompt",
	"mm_processor_kwargs":    "",
	"tools":                  "",
}

// Tokenize parses the body of POST /v1/tokenize. Its errors are those of Completion. memory may be nil.
func Tokenize(body []byte, memory Memory) (*Request, error) { return parseAs(tokenize, body, memory) }

// Detokenize parses the body of POST /v1/detokenize. Its errors are those of Completion. memory may be nil.
func Detokenize(body []byte, memory Memory) (*Request, error) {
	return parseAs(detokenize, body, memory)
}

func parseAs(s *schema, body []byte, memory Memory) (*Request, error) {
	p := parsers.Get().(*parser)
	defer p.release()
	p.reset(s, body, memory)
	if err := p.parse(); err != nil {
		return nil, err
	}
	if p.failure == nil {
		p.failure = p.request.checkRequired()
	}
	p.request.members = slices.Clone(p.request.members) // the parser's array is used again
	return p.request, p.failure
}

// readText reads a prompt that is one string.
func readText(p *parser, f *field) error {
	_, err := p.readScalar(f, '"')
	return err
}

// readTokens reads an array of token ids, perhaps empty.
func readTokens(p *parser, f *field) error {
	if p.decoder.PeekKind() != '[' {
		return p.invalidKind(f, "")
	}
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	if _, err := p.readTokenIDs(f, f.name); err != nil {
		return err
	}
	_, err := p.decoder.ReadToken()
	return err
}
