"""Scores random pairs of a context and a continuation with lm-eval's own client: pairs.py URL MODEL TOKENIZER COUNT.

Prints a line of JSON for each: the pair, and lm-eval's log-likelihood and whether it is greedy.
"""

import json
import random
import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

PIECES = [
    "The capital", " of France is", " Paris", ".", " ", "  ", "\n", "\n\n", "\t", "\u00a0", "\u2003", "\x1c", "ser", "ver", "server", " x", "1", "23", " 4,",
    "žluťoučký", " kůň", "昔々", "🙂", "def f(a):", "    return a", "A", " B", "?", "Answer:", "<|begin_of_text|>", "<|end_of_text|>", "e", "\u0301",
    "t", "he", "in", "g", "er", "s", "re", "qu", "est", "mo", "del", "to", "ken", "con", "fig",
]


def text(rng, least):
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(least, 7)))


def main(url, model, tokenizer, count):
    rng = random.Random(1)
    pairs = []
    while len(pairs) < count:
        context, continuation = text(rng, 0), text(rng, 1)
        # Without special tokens, lm-eval fails at a context of white space alone, and the API refuses it.
        if not context or context.strip():
            pairs.append((context, continuation))
    lm = LocalCompletionsAPI(
        model=model, base_url=f"{url}/v1/completions", tokenizer=tokenizer, tokenizer_backend="huggingface", num_concurrent=1, max_retries=1,
        batch_size=1, max_length=8192,
    )
    instances = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    for pair, (logprob, greedy) in zip(pairs, lm.loglikelihood(instances, disable_tqdm=True)):
        print(json.dumps({"context": pair[0], "continuation": pair[1], "logprob": logprob, "is_greedy": greedy}))


main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
