// Package loratest writes LoRA adapters of random weights. They fit the model that e2e/real makes, and mockvllm, whose adapters are
// told apart by their bytes. It is imported by tests only.
package loratest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The model of e2e/real.
const (
	hidden = 128
	layers = 2
)

// Write writes an adapter into a folder, which it creates. Adapters of different seeds have different weights.
func Write(t testing.TB, dir string, rank int, seed uint64) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	settings := fmt.Sprintf(`{"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny", "r": %d, "lora_alpha": %[1]d,
 "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": false, "modules_to_save": null, "target_modules": ["q_proj", "v_proj"]}`, rank)
	for name, content := range map[string][]byte{"adapter_config.json": []byte(settings), "adapter_model.safetensors": weights(rank, seed)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// weights returns the tensors as a file of safetensors: the length of a JSON header, the header, and the numbers.
func weights(rank int, seed uint64) []byte {
	random := rand.New(rand.NewPCG(seed, seed))
	header := map[string]any{}
	var data []byte
	for layer := range layers {
		for _, module := range []string{"q_proj", "v_proj"} {
			for part, shape := range [][]int{{rank, hidden}, {hidden, rank}} {
				name := fmt.Sprintf("base_model.model.model.layers.%d.self_attn.%s.lora_%c.weight", layer, module, "AB"[part])
				from := len(data)
				for range shape[0] * shape[1] {
					data, _ = binary.Append(data, binary.LittleEndian, float32(random.NormFloat64()))
				}
				header[name] = map[string]any{"dtype": "F32", "shape": shape, "data_offsets": []int{from, len(data)}}
			}
		}
	}
	text, _ := json.Marshal(header)
	text = append(text, bytes.Repeat([]byte{' '}, -len(text)&7)...) // vLLM maps the numbers, which are to be aligned
	return slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, data)
}
