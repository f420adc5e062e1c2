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

	"basegate/gateway/config"
)

const plaintext = "hunter2"

type holder struct {
	Exported   config.Secret
	unexported config.Secret
	pointer    *config.Secret
	list       []config.Secret
	table      map[string]config.Secret
}

type valueField struct{ Key config.Secret }

type pointerField struct{ Key *config.Secret }

func newHolder() holder {
	s := config.NewSecret(plaintext)
	return holder{s, s, &s, []config.Secret{s}, map[string]config.Secret{"k": s}}
}

func TestRevealReturnsTheText(t *testing.T) {
	if got := config.NewSecret(plaintext).Reveal(); got != plaintext {
		t.Errorf("got %q", got)
	}
	if got := (config.Secret{}).Reveal(); got != "" {
		t.Errorf("zero value: got %q, want an empty text", got)
	}
	if config.NewSecret(plaintext) != config.NewSecret("hunter"+"2") || config.NewSecret(plaintext) == config.NewSecret("x") {
		t.Error("secrets do not compare like their texts")
	}
	if config.NewSecret("") != (config.Secret{}) {
		t.Error("an empty secret is not the zero value")
	}
}

func TestEveryFormattingVerbMasksTheSecret(t *testing.T) {
	s, h := config.NewSecret(plaintext), newHolder()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T%v", "%10s", "%.3s", "%t", "%c", "%U", "%p%v"} {
		if got := fmt.Sprintf("%v "+verb, 1, s); strings.Contains(verb, "%T") || strings.Contains(verb, "%p") {
			continue
		} else if !strings.HasSuffix(got, "***") {
			t.Errorf("%s: got %s", verb, got)
		}
		for _, v := range []any{h, &h, h.list, h.table, []any{s, &s}, errors.Join(fmt.Errorf("%v", s))} {
			checkMasked(t, verb, fmt.Sprintf(verb, v))
		}
	}
	checkMasked(t, "Sprint", fmt.Sprint(s, &s, h))
}

func TestEncodersMaskTheSecret(t *testing.T) {
	h := newHolder()
	for name, encode := range map[string]func(any) ([]byte, error){
		"json": json.Marshal, "yaml": yaml.Marshal, "xml": xml.Marshal,
	} {
		for _, v := range []any{h.Exported, valueField{h.Exported}, pointerField{h.pointer}} {
			got, err := encode(v)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if checkMasked(t, name, string(got)); !strings.Contains(string(got), "***") {
				t.Errorf("%s: got %s", name, got)
			}
		}
	}
	got, err := json.Marshal(map[config.Secret]string{h.Exported: ""})
	if err != nil || string(got) != `{"***":""}` {
		t.Errorf("as a key in JSON: %s, %v", got, err)
	}
}

func TestLoggersMaskTheSecret(t *testing.T) {
	s, h := config.NewSecret(plaintext), newHolder()
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
			checkMasked(t, "zap", out.String())
		}
	}
}

func checkMasked(t *testing.T, where, text string) {
	t.Helper()
	if strings.Contains(text, plaintext) || strings.Contains(strings.ToLower(text), fmt.Sprintf("%x", plaintext)) {
		t.Errorf("%s shows the secret: %s", where, text)
	}
}
