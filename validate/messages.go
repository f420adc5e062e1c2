package validate

import (
	"bytes"
	"fmt"
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

// memberID is a known member of a message, as a bit.
type memberID uint16

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
	memberParsed
	memberParsedArguments
	memberReasoning
	memberReasoningContent
)

var memberIDs = map[string]memberID{
	"role": memberRole, "content": memberContent, "name": memberName, "tool_call_id": memberToolCallID,
	"tool_calls": memberToolCalls, "refusal": memberRefusal, "annotations": memberAnnotations, "audio": memberAudio,
	"function_call": memberFunctionCall, "parsed": memberParsed,
	"parsed_arguments": memberParsedArguments, "reasoning": memberReasoning, "reasoning_content": memberReasoningContent,
}

// membersOf are the members that a message of a role may have.
var membersOf = [Roles]memberID{
	System: memberRole | memberContent | memberName, Developer: memberRole | memberContent | memberName,
	User: memberRole | memberContent | memberName, Tool: memberRole | memberContent | memberName | memberToolCallID,
	Assistant: ^memberToolCallID,
}

// message is what has been read of a message.
type message struct {
	index   int
	path    string // in error messages, such as messages[3]
	role    Role
	seen    memberID
	present memberID // seen and not dropped
	foreign []string // the unknown members, which are null; only an assistant's message may have any
	callID  string
	cut     cutter

	nullContent bool
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
		r.chat.dropped = append(r.chat.dropped, span{c.end, end})
	case remove && c.leading < 0:
		c.leading = start
	case !remove && c.leading >= 0:
		at := len(r.chat.dropped)
		for at > 0 && r.chat.dropped[at-1].start > c.leading { // what has been removed within this member comes behind
			at--
		}
		r.chat.dropped = slices.Insert(r.chat.dropped, at, span{c.leading, start})
		c.leading = -1
	}
	c.kept = c.kept || !remove
	c.end = end
}

// readMessages reads the messages of a chat completion.
func readMessages(p *parser, f *field) error {
	if p.decoder.PeekKind() != '[' {
		return p.invalidKind(f, "")
	}
	p.request.Kind, p.request.Prompts = Messages, 1
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	n := 0
	for ; p.decoder.PeekKind() != ']'; n++ {
		if n == maxMessages {
			return p.invalid(f, "more than "+strconv.Itoa(maxMessages)+" messages")
		}
		if p.decoder.PeekKind() != '{' {
			return p.invalidElement(f, n, "a message")
		}
		m := message{index: n, path: "messages[" + strconv.Itoa(n) + "]", role: -1, cut: cutter{leading: -1}}
		if err := p.readMessage(&m); err != nil {
			return err
		}
	}
	if n == 0 {
		return p.invalid(f, "an empty array")
	}
	_, err := p.decoder.ReadToken()
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
	return p.wrong(path, "got %s; expected %s", describe(value), expected)
}

// readMessage reads one message.
func (p *parser) readMessage(m *message) error {
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	for p.decoder.PeekKind() != '}' {
		if err := p.readMessageMember(m); err != nil {
			return err
		}
	}
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	return p.checkMessage(m)
}

// readMessageMember reads a member of a message. A member that is null is removed, but for content.
func (p *parser) readMessageMember(m *message) error {
	raw, err := p.decoder.ReadValue()
	if err != nil {
		return err
	}
	start := p.offset() - len(raw)
	name := string(p.unquote(raw))
	id, known := memberIDs[name]
	switch {
	case known && m.seen&id != 0:
		return p.duplicate(name)
	case !known && p.decoder.PeekKind() != 'n':
		return p.wrong(m.path, "unknown member %q; a message has role, content, name, tool_calls and tool_call_id", apierr.Clip(name))
	}
	m.seen |= id
	kept := false
	switch {
	case !known:
		err = p.skipForeign(m.path, name, &m.foreign)
	case p.decoder.PeekKind() == 'n' && id != memberRole && id != memberContent && id != memberToolCallID:
		err = p.skipValue()
	default:
		kept, err = p.readKnownMember(m, id, name)
	}
	if err != nil {
		return err
	}
	if kept {
		m.present |= id
	}
	m.cut.member(p.request, start, p.offset(), !kept)
	return nil
}

// skipForeign skips an unknown member that is null. seen are the names of those before it in the same object.
func (p *parser) skipForeign(path, name string, seen *[]string) error {
	switch {
	case slices.Contains(*seen, name):
		return p.duplicate(name)
	case len(*seen) == maxForeign:
		return p.wrong(path, "got more than %d unknown members", maxForeign)
	}
	*seen = append(*seen, name)
	return p.skipValue()
}

// dropValue skips a value that is not sent on. A name that stands twice in an object is an error there too.
func (p *parser) dropValue() error {
	_, err := p.skipInvalid()
	return err
}

// readKnownMember reads the value of a known member and reports whether it is kept.
func (p *parser) readKnownMember(m *message, id memberID, name string) (kept bool, err error) {
	path := m.path + "." + name
	switch id { //nolint:exhaustive // the others are read alike
	case memberRole:
		return true, p.readRole(m, path)
	case memberContent:
		m.nullContent = p.decoder.PeekKind() == 'n'
		return true, p.readContent(path)
	case memberName:
		p.request.chat.uncountable = true
		_, err = p.readShort(path)
		return true, err
	case memberToolCallID:
		m.callID, err = p.readShort(path)
		return true, err
	case memberToolCalls:
		return p.readToolCalls(path)
	case memberParsed, memberParsedArguments:
		return false, p.dropValue()
	case memberReasoning, memberReasoningContent:
		p.request.chat.uncountable = true
		return true, p.readContentText(path)
	default: // what only an SDK fills in
		return false, p.readEmpty(path)
	}
}

func (p *parser) readRole(m *message, path string) error {
	const expected = "system, developer, user, assistant or tool"
	if p.decoder.PeekKind() != '"' {
		return p.wrongKind(path, expected)
	}
	raw, err := p.decoder.ReadValue()
	if err != nil {
		return err
	}
	text := p.unquote(raw)
	for role, name := range roleNames {
		if string(text) == name {
			m.role = Role(role)
			return nil
		}
	}
	return p.wrong(path, "got %s; expected %s", describe(raw), expected)
}

// readShort reads a name or an id.
func (p *parser) readShort(path string) (string, error) {
	const expected = "a string of 1 to 512 bytes"
	if p.decoder.PeekKind() != '"' {
		return "", p.wrongKind(path, expected)
	}
	raw, err := p.decoder.ReadValue()
	if err != nil {
		return "", err
	}
	text := p.unquote(raw)
	if len(text) == 0 || len(text) > maxName {
		return "", p.wrong(path, "got a string of %d bytes; expected %s", len(text), expected)
	}
	return string(text), nil
}

// readContentText reads a string that is content.
func (p *parser) readContentText(path string) error {
	if p.decoder.PeekKind() != '"' {
		return p.wrongKind(path, "a string")
	}
	raw, err := p.readString()
	p.request.chat.contentBytes += int64(len(raw))
	return err
}

// readContent reads content: a string, parts of text, or null.
func (p *parser) readContent(path string) error {
	switch p.decoder.PeekKind() { //nolint:exhaustive // no other kind is content
	case '"':
		return p.readContentText(path)
	case 'n':
		return p.skipValue()
	case '[':
	default:
		return p.wrongKind(path, `a string, or an array of {"type": "text", "text": …}`)
	}
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	n := 0
	for ; p.decoder.PeekKind() != ']'; n++ {
		if err := p.readPart(path, n); err != nil {
			return err
		}
	}
	if n == 0 {
		return p.wrong(path, "got an empty array; expected a string or parts of text")
	}
	if n > 1 { // the template, or vLLM, may put something between them
		p.request.chat.uncountable = true
	}
	_, err := p.decoder.ReadToken()
	return err
}

// readPart reads one part of content.
func (p *parser) readPart(path string, index int) error {
	const expected = `{"type": "text", "text": …}`
	path += "[" + strconv.Itoa(index) + "]"
	if p.decoder.PeekKind() != '{' {
		return p.wrongKind(path, expected)
	}
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	kind, hasText := "", false
	for p.decoder.PeekKind() != '}' {
		raw, err := p.decoder.ReadValue()
		if err != nil {
			return err
		}
		switch name := string(p.unquote(raw)); {
		case name == "type" && kind == "":
			if kind, err = p.readShort(path + ".type"); err == nil && kind != "text" {
				return p.wrong(path, "got a part of type %q; expected %s: only text is served, no images, audio or files", apierr.Clip(kind), expected)
			}
		case name == "text" && !hasText:
			hasText = true
			err = p.readContentText(path + ".text")
		case name == "type", name == "text":
			return p.duplicate(name)
		default:
			return p.wrong(path, "got %q in it; expected %s: only text is served, no images, audio or files", apierr.Clip(name), expected)
		}
		if err != nil {
			return err
		}
	}
	if kind == "" || !hasText {
		return p.wrong(path, "type or text is missing; expected %s", expected)
	}
	_, err := p.decoder.ReadToken()
	return err
}

// readEmpty reads a member that SDKs add to an assistant's message, and that must say nothing: [], {}, "" or null.
func (p *parser) readEmpty(path string) error {
	start := p.valueStart()
	if err := p.skipValue(); err != nil {
		return err
	}
	value := p.body[start:p.offset()]
	empty := string(value) == "null" || string(value) == `""`
	if value[0] == '[' || value[0] == '{' {
		empty = len(bytes.TrimSpace(value[1:len(value)-1])) == 0
	}
	if empty {
		return nil
	}
	return p.wrong(path, "got %s; expected null: only text and tool_calls are sent back", describe(value))
}

// checkMessage checks the members of a message against its role.
func (p *parser) checkMessage(m *message) error {
	if m.seen&memberRole == 0 {
		return p.wrong(m.path, "role is missing; expected system, developer, user, assistant or tool")
	}
	allowed := membersOf[m.role]
	if wrong := m.seen &^ allowed; wrong != 0 {
		return p.wrong(m.path, "got %s in a message of the role %s, which does not have it", nameOf(wrong), m.role)
	}
	if len(m.foreign) > 0 && m.role != Assistant {
		return p.wrong(m.path, "unknown member %q in a message of the role %s", apierr.Clip(m.foreign[0]), m.role)
	}
	hasContent := m.present&memberContent != 0 && !m.nullContent
	switch {
	case !hasContent && m.role != Assistant:
		return p.wrong(m.path+".content", "content is missing; expected a string or parts of text")
	case !hasContent && m.present&memberToolCalls == 0:
		return p.wrong(m.path+".content", "content is missing; expected a string or parts of text, since the message has no tool_calls")
	case m.role == Tool && m.present&memberToolCallID == 0:
		return p.wrong(m.path+".tool_call_id", "tool_call_id is missing; expected the id of the call that the message answers")
	case m.role == Tool && !p.calls.seen[m.callID]:
		return p.wrong(m.path+".tool_call_id", "got %q, which is no id among the tool_calls of the messages before it", apierr.Clip(m.callID))
	}
	if m.role == Tool || m.present&memberToolCalls != 0 {
		p.request.chat.uncountable = true
	}
	p.request.chat.roles[m.role]++
	return nil
}

// nameOf returns the name of the first of the members.
func nameOf(members memberID) string {
	first := ""
	for name, id := range memberIDs {
		if members&id != 0 && (first == "" || id < memberIDs[first]) {
			first = name
		}
	}
	return first
}
