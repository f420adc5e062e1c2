package config_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"basegate/config"
)

const clear = "hunter2"

type holder struct {
	Exported   config.Secret
	unexported config.Secret
	pointer    *config.Secret
	list       []config.Secret
	table      map[string]config.Secret
}

type field struct{ Key config.Secret }

type pointed struct{ Key *config.Secret }

func newHolder() holder {
	s := config.NewSecret(clear)
	return holder{s, s, &s, []config.Secret{s}, map[string]config.Secret{"k": s}}
}

func TestSecretRevealsOnlyWhenAsked(t *testing.T) {
	if got := config.NewSecret(clear).Reveal(); got != clear {
		t.Errorf("got %q", got)
	}
	if got := (config.Secret{}).Reveal(); got != "" {
		t.Errorf("the zero value is %q", got)
	}
	if config.NewSecret(clear) != config.NewSecret("hunter"+"2") || config.NewSecret(clear) == config.NewSecret("x") {
		t.Error("secrets do not compare as their texts do")
	}
	if config.NewSecret("") != (config.Secret{}) {
		t.Error("an empty secret is not the zero value")
	}
}

func TestSecretPrintsAsStarsByEveryVerb(t *testing.T) {
	s, h := config.NewSecret(clear), newHolder()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T%v", "%10s", "%.3s", "%t", "%c", "%U", "%p%v"} {
		if got := fmt.Sprintf("%v "+verb, 1, s); strings.Contains(verb, "%T") || strings.Contains(verb, "%p") {
			continue
		} else if !strings.HasSuffix(got, "***") {
			t.Errorf("%s: got %s", verb, got)
		}
		for _, thing := range []any{h, &h, h.list, h.table, []any{s, &s}, errors.Join(fmt.Errorf("%v", s))} {
			noneIn(t, verb, fmt.Sprintf(verb, thing))
		}
	}
	noneIn(t, "Sprint", fmt.Sprint(s, &s, h))
}

func TestSecretEncodesAsStars(t *testing.T) {
	h := newHolder()
	for name, encode := range map[string]func(any) ([]byte, error){
		"json": json.Marshal, "yaml": yaml.Marshal, "xml": xml.Marshal,
	} {
		for _, thing := range []any{h.Exported, field{h.Exported}, pointed{h.pointer}} {
			got, err := encode(thing)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if noneIn(t, name, string(got)); !strings.Contains(string(got), "***") {
				t.Errorf("%s: got %s", name, got)
			}
		}
	}
	got, err := json.Marshal(map[config.Secret]string{h.Exported: ""})
	if err != nil || string(got) != `{"***":""}` {
		t.Errorf("as a key in JSON: %s, %v", got, err)
	}
}

func TestSecretLogsAsStars(t *testing.T) {
	s, h := config.NewSecret(clear), newHolder()
	core, logged := observer.New(zapcore.DebugLevel)
	log := zap.New(core)
	log.Info("x", zap.Any("a", s), zap.Stringer("b", s), zap.Reflect("c", h), zap.Any("d", h.list), zap.Error(fmt.Errorf("%v", s)))
	log.Sugar().Infow("x", "a", s, "b", h)
	for _, encoder := range []zapcore.Encoder{
		zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()),
		zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()),
	} {
		for _, line := range logged.All() {
			out, err := encoder.EncodeEntry(line.Entry, line.Context)
			if err != nil {
				t.Fatal(err)
			}
			noneIn(t, "zap", out.String())
		}
	}
}

func noneIn(t *testing.T, where, text string) {
	t.Helper()
	if strings.Contains(text, clear) || strings.Contains(strings.ToLower(text), fmt.Sprintf("%x", clear)) {
		t.Errorf("%s shows it: %s", where, text)
	}
}
