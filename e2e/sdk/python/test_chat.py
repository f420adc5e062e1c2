"""Chat completions with the official Python SDK, unmodified."""

import json
import time

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

MODEL = "llama-8b-instruct"
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The capital of France is"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

pytestmark = pytest.mark.mock


class City(BaseModel):
    name: str
    people: int


@pytest.fixture
def client():
    return OpenAI(max_retries=0)


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_completion_tokens=12, seed=7)
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content
    assert answer.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_gives_the_same_text(client):
    whole = client.chat.completions.create(model=MODEL, messages=ASK, max_completion_tokens=12, seed=7)
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=ASK, max_completion_tokens=12, seed=7, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_logprobs(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, max_completion_tokens=5, logprobs=True, top_logprobs=2
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens and all(len(t.top_logprobs) == 2 for t in tokens)


def test_tool_round_trip_sends_back_what_the_sdk_gave(client):
    messages = list(ASK)
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER], max_completion_tokens=99)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert json.loads(message.tool_calls[0].function.arguments).keys() == {"city"}
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[WEATHER], max_completion_tokens=9, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].message.content and answer.choices[0].finish_reason in ("stop", "length")


def test_parsed_messages_of_a_stream_are_sent_back(client):
    with client.chat.completions.stream(
        model=MODEL, messages=ASK, tools=[WEATHER], max_completion_tokens=99
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    call = message.tool_calls[0]
    assert call.function.parsed_arguments["city"] is not None
    more = [*ASK, message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = client.chat.completions.create(
        model=MODEL, messages=more, max_completion_tokens=9, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].message.content
    dumped = [*ASK, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert client.chat.completions.create(model=MODEL, messages=dumped, max_completion_tokens=9).choices


def test_response_format_is_parsed_and_sent_back(client):
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=City, max_completion_tokens=200
    )
    message = answer.choices[0].message
    assert isinstance(message.parsed, City)
    again = client.chat.completions.create(
        model=MODEL, messages=[*ASK, message.model_dump(), ASK[1]], max_completion_tokens=5
    )
    assert again.choices


def test_refusals_name_what_is_wrong(client):
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}]
    for arguments, param, text in [
        ({"messages": []}, "messages", "empty array"),
        ({"messages": image}, "messages", "no images"),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "a"}]}, "messages", "tool_call_id"),
        ({"messages": ASK, "functions": [{"name": "f"}]}, "functions", "tools"),
        ({"messages": ASK, "store": True}, "store", "not stored"),
    ]:
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(model=MODEL, **arguments)
        assert raised.value.body["param"] == param and text in raised.value.body["message"]


def test_base_model_names_those_that_chat(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="llama-8b", messages=ASK)
    assert raised.value.body["code"] == "chat_completions_unsupported"
    assert MODEL in raised.value.body["message"]


def test_kluster_snippets(client, tmp_path):
    """kluster.ai's examples of chat and of its batch API, with another base URL, key and model."""
    chat_completion = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What is the capital of Argentina?"},
        ],
    )
    assert chat_completion.to_dict()["choices"]

    requests = [
        {
            "custom_id": f"request-{i}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": MODEL,
                "messages": [
                    {"role": "system", "content": "You are an experienced cook."},
                    {"role": "user", "content": "What is the ultimate breakfast sandwich?"},
                ],
                "max_completion_tokens": 10,
            },
        }
        for i in range(1, 5)
    ]
    file_name = tmp_path / "my_inference_test.jsonl"
    file_name.write_text("".join(json.dumps(r) + "\n" for r in requests))
    input_file = client.files.create(file=open(file_name, "rb"), purpose="batch")
    batch = client.batches.create(
        input_file_id=input_file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    for _ in range(3000):
        batch = client.batches.retrieve(batch.id)
        if batch.status.lower() in ("completed", "failed", "cancelled"):
            break
        time.sleep(0.1)
    assert batch.status.lower() == "completed" and batch.request_counts.completed == 4
    lines = client.files.content(batch.output_file_id).content.decode().splitlines()
    assert {json.loads(line)["response"]["body"]["object"] for line in lines} == {"chat.completion"}
