package stream

// parseMessage parses the message of a chat completion's choice, or the delta of an event. All that the model has generated
// counts as its text: the content, the reasoning (reasoning_content before vLLM 0.12), and the names and arguments of tool
// calls.
func (c *choice) parseMessage(s *scanner) {
	s.members(func(name []byte) {
		switch string(name) {
		case "content", "reasoning", "reasoning_content":
			c.addText(s.value(), s.at)
		case "tool_calls":
			if s.next() != '[' {
				s.value()
				return
			}
			s.elements(func() { c.parseToolCall(s) })
		default:
			s.value()
		}
	})
}

// parseToolCall parses a tool call, or a part of one.
func (c *choice) parseToolCall(s *scanner) {
	eachMember(s, func(name []byte) {
		if string(name) != "function" {
			s.value()
			return
		}
		eachMember(s, func(name []byte) {
			value := s.value()
			if member := string(name); (member == "name" || member == "arguments") && isText(value) {
				c.more = append(c.more, value[1:len(value)-1]...)
			}
		})
	})
}

// eachMember calls visit with the name of each member if an object follows, and otherwise consumes the value.
func eachMember(s *scanner, visit func(name []byte)) {
	if s.next() != '{' {
		s.value()
		return
	}
	s.members(visit)
}

// addText adds a member that is text and ends at an offset. The first one is kept in place, so that a chunkTemplate can find
// it.
func (c *choice) addText(value []byte, end int) {
	switch {
	case !isText(c.text):
		if isText(value) || len(c.text) == 0 {
			c.text, c.textAt = value, end-len(value)
		}
	case isText(value):
		c.more = append(c.more, value[1:len(value)-1]...)
	}
}
