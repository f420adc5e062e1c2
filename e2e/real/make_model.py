"""Writes a tiny Llama with random weights and a byte-level tokenizer: make_model.py FOLDER.

The files have the oldest format that every supported version of vLLM reads, so none is written by transformers, whose
formats change. Weights and tokenizer are the same at each run with the same documentation, which the tokenizer learns from:
after a change there the model answers otherwise, so tests must hold for any answer.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY = 2000
HIDDEN, INTERMEDIATE, LAYERS, HEADS, HEAD_DIM, CONTEXT = 128, 256, 2, 4, 32, 8192
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"


def corpus():
    """The documentation of this repository: English, code and tables. Characters beyond ASCII stay mostly unmerged."""
    for page in sorted((pathlib.Path(__file__).parents[2] / "docs").rglob("*.md")):
        yield page.read_text("utf-8")


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[BOS, EOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 0)]
    )
    return tokenizer


def make_weights(size):
    torch.manual_seed(1)

    def matrix(rows, columns):
        return torch.randn(rows, columns) * 0.08

    ones = torch.ones(HIDDEN)
    weights = {
        "model.embed_tokens.weight": matrix(size, HIDDEN),
        "model.norm.weight": ones.clone(),
        "lm_head.weight": matrix(size, HIDDEN),
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name in "qkv":
            weights[f"{layer}self_attn.{name}_proj.weight"] = matrix(HEADS * HEAD_DIM, HIDDEN)
        weights[f"{layer}self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM)
        for name in ("gate", "up"):
            weights[f"{layer}mlp.{name}_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        weights[f"{layer}mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}{name}.weight"] = ones.clone()
    return weights


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    size = tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(make_weights(size), folder / "model.safetensors", metadata={"format": "pt"})
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
        },
        # Sampling defaults that must not apply: the servers run with --generation-config vllm.
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1, "temperature": 0.1, "top_k": 3},
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "torch_dtype": "float32",
            "vocab_size": size,
            "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "head_dim": HEAD_DIM,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "bos_token_id": 0,
            "eos_token_id": 1,
            "tie_word_embeddings": False,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
