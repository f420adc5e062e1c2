package validate

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	apierr "basegate/errors"
)

// maxRepetition limits the numbers in repetition_detection: some versions of vLLM fail without a reason at huge ones.
const maxRepetition = 1024

func readRepetitionDetection(p *parser, f *field) error {
	o, err := p.readObject(f)
	if err != nil {
		return err
	}
	values := map[string]int64{"max_pattern_size": 0, "min_pattern_size": 0, "min_count": 0}
	wrong := p.each(o, func(name string, v objectValue) string {
		if _, known := values[name]; !known {
			return strconv.Quote(apierr.Clip(name)) + " in it"
		}
		n, err := strconv.ParseInt(v.Raw, 10, 64)
		if v.Type != gjson.Number || err != nil || n < 0 || n > maxRepetition {
			return v.described(name)
		}
		values[name] = n
		return ""
	})
	switch {
	case wrong != "":
	case values["min_count"] < 2:
		wrong = "min_count " + strconv.FormatInt(values["min_count"], 10) + " (0 when absent)"
	case values["min_pattern_size"] > values["max_pattern_size"]:
		wrong = "a min_pattern_size over max_pattern_size (0 when absent)"
	}
	if wrong != "" {
		return p.invalid(f, wrong)
	}
	return nil
}

// readXArgs reads vllm_xargs. Its names are checked when the model is known.
func readXArgs(p *parser, f *field) error {
	o, err := p.readObject(f)
	if err != nil {
		return err
	}
	wrong := p.each(o, func(name string, v objectValue) string {
		p.xargs = append(p.xargs, name)
		scalars := !v.IsObject()
		if v.IsArray() {
			v.ForEach(func(_, element gjson.Result) bool {
				scalars = !element.IsObject() && !element.IsArray() && element.Type != gjson.Null
				return scalars
			})
		}
		if !scalars {
			return v.described(apierr.Clip(name))
		}
		return ""
	})
	if wrong != "" {
		return p.invalid(f, wrong)
	}
	return nil
}

// checkXArgs returns an error if vllm_xargs has a name that the request's model does not take.
func (p *parser) checkXArgs(model *Model) error {
	for _, name := range p.xargs {
		if !model.unknown && !slices.Contains(model.XArgs, name) {
			return apierr.InvalidField("vllm_xargs", "vllm_xargs: got the name "+strconv.Quote(apierr.Clip(name))+
				"; expected one of the names that the operator lists for this model"+listed(model.XArgs))
		}
	}
	return nil
}

// listed returns names for the end of a sentence.
func listed(names []string) string {
	if len(names) == 0 {
		return ", which are none"
	}
	return ": " + strings.Join(names, ", ")
}
