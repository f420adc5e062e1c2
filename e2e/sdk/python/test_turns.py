"""Conversations of three turns with tools and reasoning, in which what each client library gave is sent back as it is."""

import asyncio
import os

import litellm
import openai
import pytest
from inspect_ai.model import ChatMessageTool, ChatMessageUser, GenerateConfig, get_model
from inspect_ai.tool import ToolInfo, ToolParams
from langchain_openai import ChatOpenAI

MODEL = "llama-8b-instruct"
SERVER = {"base_url": os.environ.get("FAULTY_BASE_URL"), "api_key": os.environ.get("FAULTY_API_KEY"), "max_retries": 0}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

pytestmark = pytest.mark.mock


def chat():
    return openai.OpenAI(**SERVER).chat.completions


def request(messages, limit):
    return {"model": MODEL, "messages": messages, "tools": [WEATHER], "max_tokens": limit, "seed": 7}


def openai_object(messages, limit):
    return chat().create(**request(messages, limit)).choices[0].message


def openai_dump(messages, limit):
    return openai_object(messages, limit).model_dump()


def openai_stream(messages, limit):
    with chat().stream(**request(messages, limit)) as stream:
        for _ in stream:
            pass
        return stream.current_completion_snapshot.choices[0].message


def lite(messages, limit, **more):
    asked = request(messages, limit) | {"model": "openai/" + MODEL, "api_base": SERVER["base_url"]} | more
    return litellm.completion(**asked, api_key=SERVER["api_key"], max_retries=0)


def litellm_object(messages, limit):
    return lite(messages, limit).choices[0].message


def litellm_dump(messages, limit):
    return litellm_object(messages, limit).model_dump()


def litellm_vllm(messages, limit):
    return lite(messages, limit, model="hosted_vllm/" + MODEL).choices[0].message


def litellm_stream(messages, limit):
    return litellm.stream_chunk_builder(list(lite(messages, limit, stream=True))).choices[0].message


def langchain(limit):
    return ChatOpenAI(model=MODEL, max_tokens=limit, seed=7, **SERVER).bind_tools([WEATHER])


def langchain_object(messages, limit):
    return langchain(limit).invoke(messages)


def langchain_stream(messages, limit):
    first, *rest = langchain(limit).stream(messages)
    for chunk in rest:
        first += chunk
    return first


def inspect_object(messages, limit):
    kinds = {"user": ChatMessageUser, "tool": ChatMessageTool}
    weather = WEATHER["function"]
    model = get_model("openai-api/basegate/" + MODEL, **SERVER, memoize=False, config=GenerateConfig(max_tokens=limit, seed=7))
    tools = [ToolInfo(name=weather["name"], description=weather["description"], parameters=ToolParams(**weather["parameters"]))]
    said = [kinds[m["role"]](**m) if isinstance(m, dict) else m for m in messages]
    return asyncio.run(model.generate(said, tools=tools)).message


def member(value, name):
    """Returns a member of a message or of a tool call, each of which is an object or a dict."""
    return value[name] if isinstance(value, dict) else getattr(value, name)


@pytest.mark.parametrize(
    "ask",
    [
        openai_object,
        openai_dump,
        openai_stream,
        litellm_object,
        litellm_dump,
        litellm_vllm,
        litellm_stream,
        langchain_object,
        langchain_stream,
        inspect_object,
    ],
)
def test_what_a_library_gave_is_sent_back(ask):
    messages = []
    for turn, limit in enumerate((99, 3, 99)):  # the answer of the second turn ends within its reasoning
        messages.append({"role": "user", "content": f"How is the weather in town {turn}?"})
        called = ask(messages, 99)
        (call,) = member(called, "tool_calls")
        messages += [called, {"role": "tool", "tool_call_id": member(call, "id"), "content": "sunny"}]
        answer = ask(messages, limit)
        messages.append(answer)
        text = answer.text if hasattr(answer, "text") else member(answer, "content")
        assert bool(text) == (limit == 99)
