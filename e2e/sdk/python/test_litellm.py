"""Chat completions and completions with LiteLLM's client, unmodified."""

import json
import os

import litellm
import pytest

MODEL = "llama-8b-instruct"
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The capital of France is"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def complete(messages=ASK, model=MODEL, **arguments):
    defaults = {
        "max_retries": 0, "max_tokens": 40, "seed": 7,
        "api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"],
    }
    return litellm.completion(model="openai/" + model, messages=messages, **defaults | arguments)


def test_plain():
    answer = complete()
    assert answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_with_usage():
    whole = complete()
    chunks = list(complete(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    usage = [c.usage for c in chunks if getattr(c, "usage", None)]
    assert [u.total_tokens for u in usage] == [whole.usage.total_tokens]


def test_tool_round_trip():
    asked = complete(tools=[WEATHER], max_tokens=99).choices[0].message
    assert json.loads(asked.tool_calls[0].function.arguments).keys() == {"city"}
    messages = [*ASK, asked, {"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": "sunny"}]
    assert complete(messages, tools=[WEATHER]).choices[0].message.content


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"temperature": 3}, litellm.BadRequestError, "temperature"),
        ({"messages": []}, litellm.BadRequestError, "messages"),
        ({"extra_body": {"temprature": 1}}, litellm.BadRequestError, "temprature"),
        ({"model": "llama-8b"}, litellm.BadRequestError, MODEL),
        ({"messages": [{"role": "user", "content": "word " * 20000}]}, litellm.BadRequestError, "context"),
        ({"api_key": "acs-bm-wrong"}, litellm.AuthenticationError, "key"),
        ({"model": "nothing"}, litellm.BadRequestError, "nothing"),
    ],
)
def test_errors_are_mapped(arguments, error, text):
    with pytest.raises(error) as raised:
        complete(**arguments)
    assert text in str(raised.value)
