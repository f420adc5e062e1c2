"""EternalAI's completions by OpenAI's SDK, which EternalAI's own documentation points to, with the base URL changed."""

import os
import re

import openai
import pytest
from openai import OpenAI

pytestmark = pytest.mark.mock

MODEL = "meta-llama/Llama-3.1-8B"  # the checkpoint; the short id is "faulty"


@pytest.fixture
def client():
    base = os.environ["FAULTY_BASE_URL"].removesuffix("/v1") + "/eternalai/v1"
    return OpenAI(base_url=base, api_key=os.environ["FAULTY_API_KEY"], max_retries=0)


def check_onchain_data(data):
    assert re.fullmatch("[0-9a-f]{64}", data["infer_tx"])
    assert data["infer_tx"] == data["submit_tx"] == data["propose_tx"]
    assert data["input_cid"].startswith("ipfs://b") and data["output_cid"].startswith("ipfs://b")
    assert data["pbft_committee"] == [] and len(data["assignment_addresses"]) == 1


def test_completion(client):
    answer = client.completions.create(
        model=MODEL, prompt="Say this is a test", max_tokens=7, temperature=0, logprobs=5, extra_body={"chain_id": "45762"}
    )
    assert answer.object == "text_completion" and answer.choices[0].text and answer.usage.completion_tokens == 7
    check_onchain_data(answer.onchain_data)


def test_stream(client):
    chunks = list(
        client.completions.create(
            model=MODEL, prompt="Say this is a test", max_tokens=7, temperature=0, stream=True, stream_options={"include_receipt": True}
        )
    )
    assert "".join(c.choices[0].text for c in chunks if c.choices)
    check_onchain_data(chunks[-1].onchain_data)


def test_bounds(client):
    for field, value in {"logprobs": 6, "stop": ["a", "b", "c", "d", "e"], "suffix": "x", "best_of": 1}.items():
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model=MODEL, prompt="a", n=1, **{field: value})
        assert refused.value.body["param"] == field
    with pytest.raises(openai.BadRequestError, match="chain_id"):
        client.completions.create(model=MODEL, prompt="a", extra_body={"chain_id": "x"})
