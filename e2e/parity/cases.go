package parity

import (
	_ "embed"
	"fmt"
	"slices"
	"sync"

	"github.com/goccy/go-yaml"
)

// Case is one row of the matrix: a set of request fields that is sent plain and streamed.
type Case struct {
	Name   string `yaml:"name"`
	Fields string `yaml:"fields"` // the JSON members after model and prompt; $A and $B are two token ids of the model
	Prompt string `yaml:"prompt"` // the name of a built-in prompt; empty: text
	Modes  Modes  `yaml:"modes"`

	// Refused marks a request that the gateway must refuse with 400 invalid_request. It is not sent to a backend.
	Refused bool `yaml:"refused"`
	// MayRefuse is the parameter that the gateway may refuse with 400 invalid_request, because the backends' version of vLLM
	// lacks it. A response must be identical all the same.
	MayRefuse string `yaml:"may_refuse"`
}

// Modes says in which ways a case is sent.
type Modes string

// The modes of a case.
const (
	Both       Modes = ""
	PlainOnly  Modes = "plain"
	StreamOnly Modes = "stream"
)

//go:embed cases.yaml
var casesYAML []byte

var matrix = sync.OnceValue(func() []Case {
	var cases []Case
	if err := yaml.UnmarshalWithOptions(casesYAML, &cases, yaml.DisallowUnknownField()); err != nil {
		panic(err) // cannot fail: the file is embedded
	}
	for _, c := range cases {
		if !slices.Contains([]Modes{Both, PlainOnly, StreamOnly}, c.Modes) {
			panic(fmt.Sprintf("case %q: unknown modes %q", c.Name, c.Modes))
		}
	}
	return cases
})

// Matrix returns the cases that Run sends if Settings.Cases is empty.
func Matrix() []Case { return slices.Clone(matrix()) }
