"""Tests of the gateway with the official Python SDK, unmodified: every example of the documentation."""

import asyncio
import json
import math
import os
import time
import urllib.request

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

MODEL = "llama-8b"
FRANCE = "The capital of France is"


@pytest.fixture
def client():
    return OpenAI(max_retries=0)


@pytest.fixture
def faulty():
    """A client of the gateway whose mock fails on demand, and a function that injects a fault."""

    def inject(**fault):
        request = urllib.request.Request(os.environ["FAULTY_MOCK"] + "/mock/fault", json.dumps(fault).encode())
        urllib.request.urlopen(request).read()

    client = OpenAI(base_url=os.environ["FAULTY_BASE_URL"], api_key=os.environ["FAULTY_API_KEY"], max_retries=0)
    yield client, inject
    urllib.request.urlopen(urllib.request.Request(os.environ["FAULTY_MOCK"] + "/mock/fault", method="DELETE")).read()


@pytest.mark.mock
def test_completion(client):
    completion = client.completions.create(model=MODEL, prompt=FRANCE, max_tokens=16, temperature=0)
    assert completion.choices[0].text.startswith(" Paris")
    assert completion.model == "meta-llama/Llama-3.1-8B"
    assert completion.usage.prompt_tokens > 0 and completion.usage.completion_tokens <= 16


def test_same_seed_gives_same_text(client):
    def texts(*seeds):
        return {
            client.completions.create(model=MODEL, prompt="Once", max_tokens=16, seed=s).choices[0].text for s in seeds
        }

    assert len(texts(7, 7, 7)) == 1
    assert len(texts(7, 8, 9)) > 1


def test_all_sampling_fields_at_once(client):
    completion = client.completions.create(
        model=MODEL,
        prompt=FRANCE,
        max_tokens=4,
        temperature=0.7,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logprobs=5,
        extra_body={"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "prompt_logprobs": 5},
        extra_headers={"X-Acs-Workload": "batch"},
    )
    assert completion.choices[0].logprobs.top_logprobs and completion.choices[0].prompt_logprobs


def test_vllm_fields_in_extra_body(client):
    greedy = client.completions.create(model=MODEL, prompt=FRANCE, max_tokens=8, temperature=0).choices[0].text
    first = client.completions.create(
        model=MODEL, prompt=FRANCE, max_tokens=8, extra_body={"top_k": 1, "min_p": 0.0, "repetition_penalty": 1.0}
    )
    assert first.choices[0].text == greedy


def test_n_and_stop(client):
    completion = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=20, n=3, stop=[" the"])
    assert [c.index for c in completion.choices] == [0, 1, 2]
    assert all(" the" not in c.text for c in completion.choices)


def test_best_of_works_though_vllm_ignores_it(client):
    completion = client.completions.create(model=MODEL, prompt=FRANCE, max_tokens=4, n=1, best_of=4, seed=1)
    assert len(completion.choices) == 1
    assert completion.choices[0].logprobs is None
    assert completion.usage.completion_tokens > 4


def test_logprobs(client):
    logprobs = client.completions.create(model=MODEL, prompt=FRANCE, max_tokens=1, logprobs=5).choices[0].logprobs
    assert 5 <= len(logprobs.top_logprobs[0]) <= 6
    assert sum(math.exp(v) for v in logprobs.top_logprobs[0].values()) <= 1.000001


def test_prompt_logprobs(client):
    completion = client.completions.create(model=MODEL, prompt=FRANCE, max_tokens=1, extra_body={"prompt_logprobs": 5})
    positions = completion.choices[0].prompt_logprobs
    assert positions[0] is None
    assert any(entry["rank"] == 1 for entry in positions[1].values())


def test_echo(client):
    completion = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, echo=True)
    assert completion.choices[0].text.startswith("Once upon a time")


def test_stream(client):
    stream = client.completions.create(model=MODEL, prompt="Five reasons:\n1.", max_tokens=20, stream=True)
    chunks = list(stream)
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    *before, last = [chunk.choices[0].finish_reason for chunk in chunks]
    assert not any(before) and last in ("length", "stop")


@pytest.mark.mock
def test_stream_arrives_token_by_token(client):
    params = {"model": MODEL, "prompt": FRANCE, "max_tokens": 12, "seed": 3, "logprobs": 0}
    plain = client.completions.create(**params).choices[0]
    for _ in range(20):  # the tokens of one may arrive together, if this process is not run meanwhile
        arrivals, tokens = [], []
        for chunk in client.completions.create(**params, stream=True):
            arrivals.append(time.monotonic())
            tokens += chunk.choices[0].logprobs.tokens
            assert len(chunk.choices[0].logprobs.tokens) == 1
        assert tokens == plain.logprobs.tokens
        if arrivals[-1] - arrivals[0] > 0.01 * (len(tokens) - 1):  # the mock takes 15 ms a token
            return
    pytest.fail("the tokens of each stream arrive together")


@pytest.mark.mock
def test_stream_with_usage(client):
    stream = client.completions.create(
        model=MODEL, prompt="Five reasons:\n1.", max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream
    assert last.choices == [] and last.usage.completion_tokens == len(chunks)


def test_user_tag_is_returned(client):
    raw = client.completions.with_raw_response.create(model=MODEL, prompt=FRANCE, max_tokens=1, user="run-1")
    assert raw.headers["x-acs-user"] == "run-1"
    assert raw.parse().user == "run-1"


def test_models(client):
    models = {m.id: m for m in client.models.list()}
    assert models[MODEL].status == "warm"
    assert client.models.retrieve(MODEL).checkpoint == "meta-llama/Llama-3.1-8B"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_fan_out():
    async def all_at_once():
        async with AsyncOpenAI(max_retries=0) as client:
            return await asyncio.gather(
                *(client.completions.create(model=MODEL, prompt=f"Sample {i}:", max_tokens=8) for i in range(32))
            )

    completions = asyncio.run(all_at_once())
    assert len(completions) == 32 and all(c.choices[0].finish_reason for c in completions)


def test_async_stream():
    async def texts():
        async with AsyncOpenAI(max_retries=0) as client:
            stream = await client.completions.create(model=MODEL, prompt=FRANCE, max_tokens=8, temperature=0, stream=True)
            return [chunk.choices[0].text async for chunk in stream]

    plain = OpenAI().completions.create(model=MODEL, prompt=FRANCE, max_tokens=8, temperature=0).choices[0].text
    assert "".join(asyncio.run(texts())) == plain


def error_of(raised):
    """Returns the error object, e.body, from which the SDK also sets e.code, e.param and e.type."""
    assert raised.value.body["code"] == raised.value.code
    return raised.value.body


@pytest.mark.parametrize(
    "status, change",
    [(400, {"extra_body": {"temprature": 1}}), (400, {"model": "nothing"}), (401, {"extra_headers": {"Authorization": "x"}})],
)
def test_permanent_errors_are_not_retried(status, change):
    requests = []
    transport = openai.DefaultHttpxClient(event_hooks={"request": [requests.append]})
    with OpenAI(max_retries=3, http_client=transport) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            client.completions.create(**{"model": MODEL, "prompt": "x", "max_tokens": 1, **change})
    assert raised.value.status_code == status
    assert len(requests) == 1


def test_unknown_field(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=MODEL, prompt="x", extra_body={"temprature": 1})
    error = error_of(raised)
    assert error["code"] == "invalid_request" and error["param"] == "temprature"
    assert error["suggestion"] == "temperature"


def test_out_of_range_is_not_clamped(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=MODEL, prompt="x", temperature=3)
    assert error_of(raised)["param"] == "temperature"


def test_unknown_model(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model="meta-llama/Llama-3.1-8B", prompt="x")
    assert error_of(raised)["code"] == "model_not_found"
    assert error_of(raised)["suggestion"] == MODEL


def test_wrong_key(client):
    with pytest.raises(openai.AuthenticationError) as raised:
        client.with_options(api_key="acs-bm-wrong").completions.create(model=MODEL, prompt="x")
    assert error_of(raised)["code"] == "invalid_api_key"


def test_chat_is_unsupported(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
    assert error_of(raised)["code"] == "chat_completions_unsupported"


def test_context_length(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=MODEL, prompt=[1] * 8192, max_tokens=1)
    assert error_of(raised)["code"] == "context_length_exceeded"


@pytest.mark.mock
def test_out_of_memory_is_reported(faulty):
    client, inject = faulty
    inject(kind="oom")
    with pytest.raises(openai.InternalServerError) as raised:
        client.completions.create(model="faulty", prompt="x")
    assert error_of(raised)["code"] == "vllm_oom"
    assert raised.value.response.headers["x-acs-upstream-error-kind"] == "vllm_oom"


@pytest.mark.mock
def test_failure_before_the_response_is_retried_by_the_gateway(faulty):
    client, inject = faulty
    inject(kind="reset", times=1)
    assert client.completions.create(model="faulty", prompt="x", max_tokens=2).choices


@pytest.mark.mock
def test_interrupted_stream_raises(faulty):
    client, inject = faulty
    inject(kind="reset_mid", after_events=3)
    seen = 0
    with pytest.raises(openai.APIError) as raised:
        for _ in client.completions.create(model="faulty", prompt="Once upon", max_tokens=12, seed=1, stream=True):
            seen += 1
    assert seen == 3
    assert error_of(raised)["code"] == "upstream_server_error"
