package validate

import (
	"bytes"
	"fmt"
	"math/bits"
	"slices"
	"strconv"

	apierr "basegate/errors"
)

// Role is the role of a message.
type Role int

// The roles of messages.
const (
	System Role = iota
	Developer
	User
	Assistant
	Tool
	Roles = int(Tool) + 1 // their number
)

var roleNames = [Roles]string{"system", "developer", "user", "assistant", "tool"}

// String returns the role as it is written in a message.
func (r Role) String() string { return roleNames[r] }

const (
	maxMessages = 2048
	// maxToolCalls limits the tool calls of all messages together: more could not be answered by maxMessages.
	maxToolCalls = maxMessages
	// maxName limits the names and ids in messages and tools, in bytes.
	maxName = 512
	// maxArguments limits the arguments of a tool call, in bytes.
	maxArguments = 1 << 20
	// maxForeign limits the unknown members of one object, which are null.
	maxForeign = 64
)

// callIDs are the ids of the tool calls in the messages that have been read.
type callIDs struct {
	seen  map[string]bool
	count int
}

// memberID is a known member of a message, as a bit: 1 shifted by the index of its name in memberNames.
type memberID uint32

const (
	memberRole memberID = 1 << iota
	memberContent
	memberName
	memberToolCallID
	memberToolCalls
	memberRefusal
	memberAnnotations
	memberAudio
	memberFunctionCall
	memberReasoning
	memberReasoningContent
	memberOfClients // and those behind it: they are never sent to a backend
)

// memberNames are the members of a message. From parsed on they are what SDKs and client libraries add to an assistant's
// message for themselves.
var memberNames = []string{
	"role", "content", "name", "tool_call_id", "tool_calls", "refusal", "annotations", "audio", "function_call", "reasoning",
	"reasoning_content", "parsed", "parsed_arguments", "provider_specific_fields", "reasoning_details", "reasoning_items",
	"thinking_blocks", "id",
}

// membersOf are the members that a message of a role may have.
var membersOf = [Roles]memberID{
	System: memberRole | memberContent | memberName, Developer: memberRole | memberContent | memberName,
	User: memberRole | memberContent | memberName, Tool: memberRole | memberContent | memberName | memberToolCallID,
	Assistant: ^memberToolCallID,
}

// message is what has been read of a message.
type message struct {
	path    string // in error messages, such as messages[3]
	role    Role
	present memberID // neither null nor an empty list of tool calls
	callID  string
}

// cutter removes members of one object: each with one comma.
type cutter struct {
	kept    bool // a member has been kept
	leading int  // where the first removed member begins, if none has been kept before it; -1 if there is none
	end     int  // of the last member
}

// member records a member whose name begins at start and whose value ends at end. remove says that it is removed.
func (c *cutter) member(r *Request, start, end int, remove bool) {
	switch {
	case remove && c.kept:
		r.dropped = append(r.dropped, span{c.end, end})
	case remove && c.leading < 0:
		c.leading = start
	case !remove && c.leading >= 0:
		at := len(r.dropped)
		for at > 0 && r.dropped[at-1].start > c.leading { // what has been removed within this member comes behind
			at--
		}
		r.dropped = slices.Insert(r.dropped, at, span{c.leading, start})
		c.leading = -1
	}
	c.kept = c.kept || !remove
	c.end = end
}

// ended removes the members before the end of an object of which none has been kept.
func (c *cutter) ended(r *Request) {
	if c.leading >= 0 {
		r.dropped = append(r.dropped, span{c.leading, c.end})
	}
}

func readMessages(p *parser, f *field) error {
	p.request.Kind, p.request.Prompts = Messages, 1
	n, err := p.readArray(f, func(i int) error {
		if i == maxMessages {
			return p.invalid(f, "more than "+strconv.Itoa(maxMessages)+" messages")
		}
		if p.decoder.PeekKind() != '{' {
			return p.invalidElement(f, i, "a message")
		}
		return p.readMessage(&message{path: "messages[" + strconv.Itoa(i) + "]", role: -1})
	})
	if err == nil && n == 0 {
		return p.invalid(f, "an empty array")
	}
	return err
}

// wrong records what is wrong at a path within messages.
func (p *parser) wrong(path, format string, args ...any) error {
	return p.fail(apierr.InvalidField("messages", path+": "+fmt.Sprintf(format, args...)))
}

// wrongKind skips a value of the wrong kind and records it.
func (p *parser) wrongKind(path, expected string) error {
	value, err := p.skipInvalid()
	if err != nil {
		return err
	}
	return p.wrong(path, "got %s; expected %s", Describe(value), expected)
}

func (p *parser) readMessage(m *message) error {
	const hint = "; a message has role, content, name, tool_calls and tool_call_id"
	err := p.readKnown(m.path, memberNames, hint, func(at int) (kept bool, err error) {
		id, present := memberID(1)<<at, true
		switch path := m.path + "." + memberNames[at]; {
		case id == memberRole:
			kept, err = true, p.readRole(m, path)
		case id == memberContent:
			kept, err = true, p.readContent(path)
		case id == memberName:
			p.request.chat.uncountable = true
			kept = true
			_, err = p.readShort(path)
		case id == memberToolCallID:
			kept = true
			m.callID, err = p.readShort(path)
		case id == memberToolCalls:
			kept, err = p.readToolCalls(path)
			present = kept
		case id == memberReasoning, id == memberReasoningContent:
			p.request.chat.uncountable = true
			kept, err = true, p.readContentText(path)
		case id >= memberOfClients:
			err = p.dropValue()
		default: // what only an SDK fills in
			err = p.readEmpty(path)
		}
		if present {
			m.present |= id
		}
		return kept, err
	})
	if err != nil {
		return err
	}
	return p.checkMessage(m)
}

// readKnown reads an object of a message whose names are known: see readNamed. hint ends the error of an unknown name.
func (p *parser) readKnown(path string, names []string, hint string, visit func(at int) (kept bool, err error)) error {
	if p.decoder.PeekKind() != '{' {
		return p.wrongKind(path, "an object"+hint)
	}
	return p.readNamed(names, visit, func(name string) error { return p.wrong(path, "unknown member %q%s", apierr.Clip(name), hint) })
}

// readNamed reads an object whose names are known. A member that is null is absent, whatever its name, and removed. visit
// reads the value of the member names[at] and reports whether it is kept. unknown returns the error of an unknown name.
func (p *parser) readNamed(names []string, visit func(at int) (kept bool, err error), unknown func(name string) error) error {
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	cut, seen, foreign := cutter{leading: -1}, uint32(0), []string(nil)
	for p.decoder.PeekKind() != '}' {
		raw, err := p.decoder.ReadValue()
		if err != nil {
			return err
		}
		start := p.offset() - len(raw)
		name := p.unquote(raw)
		at := slices.IndexFunc(names, func(known string) bool { return known == string(name) })
		null, kept := p.decoder.PeekKind() == 'n', false
		switch {
		case at < 0 && slices.Contains(foreign, string(name)):
			return p.duplicate(string(name))
		case at < 0 && (!null || len(foreign) == maxForeign):
			return unknown(string(name))
		case at < 0:
			foreign = append(foreign, string(name))
			err = p.skipValue()
		case seen&(1<<at) != 0:
			return p.duplicate(names[at])
		case null:
			err = p.skipValue()
		default:
			kept, err = visit(at)
		}
		if err != nil {
			return err
		}
		if at >= 0 {
			seen |= 1 << at
		}
		cut.member(p.request, start, p.offset(), !kept)
	}
	cut.ended(p.request)
	_, err := p.decoder.ReadToken()
	return err
}

// dropValue skips a value that is not sent on. A name that stands twice in an object is an error there too.
func (p *parser) dropValue() error {
	_, err := p.skipInvalid()
	return err
}

func (p *parser) readRole(m *message, path string) error {
	const expected = "system, developer, user, assistant or tool"
	raw, err := p.readWord(path, expected)
	if err != nil {
		return err
	}
	m.role = Role(slices.Index(roleNames[:], string(p.unquote(raw))))
	if m.role < 0 {
		return p.wrong(path, "got %s; expected %s", Describe(raw), expected)
	}
	return nil
}

// readWord reads a string, which it returns as JSON.
func (p *parser) readWord(path, expected string) ([]byte, error) {
	if p.decoder.PeekKind() != '"' {
		return nil, p.wrongKind(path, expected)
	}
	return p.readString()
}

func (p *parser) readShort(path string) (string, error) {
	const expected = "a string of 1 to 512 bytes"
	raw, err := p.readWord(path, expected)
	if err != nil {
		return "", err
	}
	text := p.unquote(raw)
	if len(text) == 0 || len(text) > maxName {
		return "", p.wrong(path, "got a string of %d bytes; expected %s", len(text), expected)
	}
	return string(text), nil
}

func (p *parser) readContentText(path string) error {
	raw, err := p.readWord(path, "a string")
	p.request.chat.contentBytes += int64(len(raw))
	return err
}

// readContent reads content: a string, or parts of text.
func (p *parser) readContent(path string) error {
	switch p.decoder.PeekKind() {
	case '"':
		return p.readContentText(path)
	case '[':
	default:
		return p.wrongKind(path, `a string, or an array of {"type": "text", "text": …}`)
	}
	n, err := p.readArray(nil, func(i int) error { return p.readPart(path, i) })
	if err == nil && n == 0 {
		return p.wrong(path, "got an empty array; expected a string or parts of text")
	}
	if n > 1 { // the template, or vLLM, may put something between them
		p.request.chat.uncountable = true
	}
	return err
}

// partMembers are the members of a part of content.
var partMembers = []string{"type", "text"}

func (p *parser) readPart(path string, index int) error {
	const expected = `expected {"type": "text", "text": …}`
	const hint = "; " + expected + ": only text is served, no images, audio or files"
	path += "[" + strconv.Itoa(index) + "]"
	kind, hasText := "", false
	err := p.readKnown(path, partMembers, hint, func(at int) (kept bool, err error) {
		if partMembers[at] == "text" {
			hasText = true
			return true, p.readContentText(path + ".text")
		}
		if kind, err = p.readShort(path + ".type"); err == nil && kind != "text" {
			err = p.wrong(path, "got a part of type %q%s", apierr.Clip(kind), hint)
		}
		return true, err
	})
	if err == nil && (kind == "" || !hasText) {
		return p.wrong(path, "type or text is missing; %s", expected)
	}
	return err
}

// readEmpty reads a member that SDKs add to an assistant's message, and that must say nothing: [], {} or "".
func (p *parser) readEmpty(path string) error {
	start := p.valueStart()
	if err := p.skipValue(); err != nil {
		return err
	}
	value := p.body[start:p.offset()]
	empty := string(value) == `""`
	if value[0] == '[' || value[0] == '{' {
		empty = len(bytes.TrimSpace(value[1:len(value)-1])) == 0
	}
	if empty {
		return nil
	}
	return p.wrong(path, "got %s; expected null: only text and tool_calls are sent back", Describe(value))
}

func (p *parser) checkMessage(m *message) error {
	if m.present&memberRole == 0 {
		return p.wrong(m.path, "role is missing; expected system, developer, user, assistant or tool")
	}
	if wrong := m.present &^ membersOf[m.role]; wrong != 0 {
		name := memberNames[bits.TrailingZeros32(uint32(wrong))]
		return p.wrong(m.path, "got %s in a message of the role %s, which does not have it", name, m.role)
	}
	hasContent := m.present&memberContent != 0
	switch {
	case !hasContent && m.role != Assistant:
		return p.wrong(m.path+".content", "content is missing; expected a string or parts of text")
	case m.role == Tool && m.present&memberToolCallID == 0:
		return p.wrong(m.path+".tool_call_id", "tool_call_id is missing; expected the id of the call that the message answers")
	case m.role == Tool && !p.calls.seen[m.callID]:
		return p.wrong(m.path+".tool_call_id", "got %q, which is no id among the tool_calls of the messages before it", apierr.Clip(m.callID))
	}
	if !hasContent || m.role == Tool || m.present&memberToolCalls != 0 {
		p.request.chat.uncountable = true
	}
	p.request.chat.roles[m.role]++
	return nil
}
