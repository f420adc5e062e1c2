package config

// boolean decodes true or false.
func boolean(to *bool) decodeFunc {
	const want = "true or false"
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		if s.isText && !s.expanded || s.text != "true" && s.text != "false" {
			v.errorf("want %s, got %s", want, s.got)
			return
		}
		*to = s.text == "true"
	}
}
