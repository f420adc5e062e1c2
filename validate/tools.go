package validate

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	apierr "basegate/errors"
)

// maxTools limits the tools of a request, and the tool calls of a message.
const maxTools = 128

// readToolCalls reads the tool_calls of a message and reports whether there are any.
func (p *parser) readToolCalls(path string) (found bool, err error) {
	if p.decoder.PeekKind() != '[' {
		return false, p.wrongKind(path, "an array of tool calls")
	}
	n, err := p.readArray(nil, func(i int) error {
		p.calls.count++
		if i == maxTools || p.calls.count > maxToolCalls {
			return p.wrong(path, "got more than %d tool calls, or more than %d in all messages", maxTools, maxToolCalls)
		}
		return p.readToolCall(path + "[" + strconv.Itoa(i) + "]")
	})
	return n > 0, err
}

// The members of a tool call and of its function. From index on they are what events of a stream have, and what SDKs and
// client libraries add; they are not sent on.
var (
	callMembers   = []string{"id", "type", "function", "index", "parsed_arguments", "provider_specific_fields"}
	calledMembers = []string{"name", "arguments", "parsed_arguments"}
)

// readToolCall reads one tool call and remembers its id.
func (p *parser) readToolCall(path string) error {
	id, kind, called := "", "", false
	err := p.readKnown(path, callMembers, "", func(at int) (kept bool, err error) {
		switch callMembers[at] {
		case "id":
			id, err = p.readShort(path + ".id")
		case "type":
			if kind, err = p.readShort(path + ".type"); err == nil && kind != "function" {
				err = p.wrong(path+".type", "got %q; expected \"function\"", apierr.Clip(kind))
			}
		case "function":
			called = true
			err = p.readCalled(path + ".function")
		default:
			return false, p.dropValue()
		}
		return true, err
	})
	switch {
	case err != nil:
		return err
	case id == "" || kind == "" || !called:
		return p.wrong(path, "id, type or function is missing")
	}
	if p.calls.seen == nil {
		p.calls.seen = make(map[string]bool)
	}
	p.calls.seen[id] = true
	return nil
}

func (p *parser) readCalled(path string) error {
	named, hasArguments := false, false
	err := p.readKnown(path, calledMembers, "", func(at int) (kept bool, err error) {
		switch calledMembers[at] {
		case "name":
			named = true
			_, err = p.readShort(path + ".name")
		case "arguments":
			hasArguments = true
			err = p.readArguments(path + ".arguments")
		default:
			return false, p.dropValue()
		}
		return true, err
	})
	if err == nil && (!named || !hasArguments) {
		return p.wrong(path, "name or arguments is missing")
	}
	return err
}

// readArguments reads the arguments of a tool call: a JSON object in a string, or an empty string. vLLM parses it for the
// template, and some of its versions fail with status 500 if it is anything else.
func (p *parser) readArguments(path string) error {
	const expected = "a string that holds a JSON object"
	raw, err := p.readWord(path, expected)
	if err != nil {
		return err
	}
	p.request.chat.contentBytes += int64(len(raw))
	if len(raw) > maxArguments {
		return p.wrong(path, "got a string of %d bytes; expected at most %d", len(raw), maxArguments)
	}
	if len(raw) > maxCopied && !p.argumentsCounted {
		if err := p.grow(maxArguments); err != nil {
			return err
		}
		p.argumentsCounted = true
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	if err != nil || len(text) == 0 {
		return err
	}
	if _, valid := nesting(text); !valid || jsontext.Value(text).Kind() != '{' {
		return p.wrong(path, "got a string that holds no JSON object of at most %d levels; expected %s", maxDepth, expected)
	}
	return nil
}

// nesting returns how deep text nests as JSON, which is 1 for an object of scalars, and whether it is one value of at most
// maxDepth levels.
func nesting(text []byte) (levels int, valid bool) {
	d := jsontext.NewDecoder(bytes.NewBuffer(text), decoderOptions)
	for {
		if _, err := d.ReadToken(); err != nil || d.StackDepth() > maxDepth {
			return levels, false
		}
		levels = max(levels, d.StackDepth())
		if d.StackDepth() == 0 {
			return levels, len(bytes.TrimSpace(text[d.InputOffset():])) == 0
		}
	}
}

func readTools(p *parser, f *field) error {
	n, err := p.readArray(f, func(i int) error {
		if i == maxTools {
			return p.invalid(f, "more than "+strconv.Itoa(maxTools)+" tools")
		}
		if p.decoder.PeekKind() != '{' {
			return p.invalidElement(f, i, "a tool")
		}
		o, err := p.readObject(f)
		if err != nil {
			return err
		}
		name, wrong := p.readTool(o)
		if wrong != "" {
			return p.invalid(f, fmt.Sprintf("%s in tools[%d]", wrong, i))
		}
		p.request.chat.functions = append(p.request.chat.functions, name)
		return nil
	})
	p.absent = err == nil && n == 0
	return err
}

// The members of a tool and of its function.
var (
	toolMembers = map[string]memberCheck{
		"type": func(v gjson.Result) bool { return v.Str == "function" }, "function": gjson.Result.IsObject,
	}
	functionMembers = map[string]memberCheck{
		"name":        func(v gjson.Result) bool { return isText(v) && len(v.Str) <= maxName },
		"description": isString, "parameters": gjson.Result.IsObject, "strict": gjson.Result.IsBool,
	}
)

// readTool returns the name of a tool, or what is wrong with it.
func (p *parser) readTool(o objectValue) (name, wrong string) {
	isFunction := false
	wrong = p.eachKnown(o, toolMembers, "", "an unknown member %s", func(member string, v objectValue) (wrong string) {
		if member == "type" {
			isFunction = true
			return ""
		}
		return p.eachKnown(v, functionMembers, "function.", "an unknown member %s of function", func(member string, v objectValue) string {
			if member == "name" {
				name = v.Str
			}
			return ""
		})
	})
	switch {
	case wrong != "":
		return "", wrong
	case !isFunction:
		return "", `no type "function"`
	case name == "":
		return "", "no function with a name"
	default:
		return name, ""
	}
}

func readToolChoice(p *parser, f *field) error {
	if p.decoder.PeekKind() == '"' {
		raw, err := p.decoder.ReadValue()
		if err != nil {
			return err
		}
		switch string(p.unquote(raw)) {
		case "none":
			p.request.chat.noTool = true
			return nil
		case "auto", "required":
			return nil
		default:
			return p.invalid(f, Describe(raw))
		}
	}
	return object((*parser).checkToolChoice)(p, f)
}

func (p *parser) checkToolChoice(o objectValue) (wrong string) {
	isFunction := false
	wrong = p.each(o, func(member string, v objectValue) string {
		switch {
		case member == "type" && v.Type == gjson.String && v.Str == "function":
			isFunction = true
		case member == "function" && v.IsObject():
			return p.each(v, func(inner string, name objectValue) string {
				if inner != "name" || !isText(name.Result) {
					return name.described("function." + apierr.Clip(inner))
				}
				p.request.chat.choice = name.Str
				return ""
			})
		default:
			return v.described(apierr.Clip(member))
		}
		return ""
	})
	if wrong == "" && (!isFunction || p.request.chat.choice == "") {
		wrong = "an object without type or function.name"
	}
	return wrong
}

// ownArguments are names that vLLM passes to the template itself, or to the tokenizer. Several versions took them from
// chat_template_kwargs, so that a client could replace the template (CVE-2025-61620) or block the server (CVE-2025-62426).
var ownArguments = []string{
	"add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "max_length", "messages",
	"padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs", "tools", "truncation",
}

// maxArgumentLevels limits the nesting of chat_template_kwargs.
const maxArgumentLevels = 4

func (*parser) checkTemplateArguments(o objectValue) (wrong string) {
	o.ForEach(func(name, _ gjson.Result) bool {
		if slices.Contains(ownArguments, name.Str) {
			wrong = strconv.Quote(name.Str) + " in it, which is no argument of a template"
		}
		return wrong == ""
	})
	if levels, _ := nesting([]byte(o.Raw)); wrong == "" && levels > maxArgumentLevels {
		wrong = "an object that nests deeper"
	}
	return wrong
}
