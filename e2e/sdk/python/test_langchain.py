"""Chat completions with LangChain's client, unmodified."""

import openai
import pytest
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

MODEL = "llama-8b-instruct"
ASK = [SystemMessage("Be brief."), HumanMessage("Tell me a story.")]

pytestmark = pytest.mark.mock


class City(BaseModel):
    """A city."""

    name: str
    people: int


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return "sunny in " + city


def client(**arguments):
    return ChatOpenAI(**{"model": MODEL, "max_retries": 0, "max_tokens": 99, "seed": 7} | arguments)


def test_plain():
    answer = client().invoke(ASK)
    assert answer.content and answer.response_metadata["finish_reason"] in ("stop", "length")
    usage = answer.usage_metadata
    assert usage["input_tokens"] and usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_stream_gives_the_same_text_and_usage():
    whole = client().invoke(ASK)
    chunks = list(client(stream_usage=True).stream(ASK))
    assert len(chunks) > 2 and "".join(c.content for c in chunks) == whole.content
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert total.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"]


@pytest.mark.parametrize("streamed", [False, True])
def test_tool_round_trip(streamed):
    messages = [HumanMessage("How is the weather in Prague?")]
    bound = client().bind_tools([weather])
    if streamed:
        chunks = list(bound.stream(messages))
        asked = chunks[0]
        for chunk in chunks[1:]:
            asked += chunk
    else:
        asked = bound.invoke(messages)
    assert [call["name"] for call in asked.tool_calls] == ["weather"]
    messages += [asked, *(ToolMessage(weather.invoke(c["args"]), tool_call_id=c["id"]) for c in asked.tool_calls)]
    answer = bound.invoke(messages)
    assert answer.content and not answer.tool_calls


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(method):
    structured = client(max_tokens=200).with_structured_output(City, method=method)
    assert isinstance(structured.invoke("Invent a city."), City)


def test_errors_are_those_of_the_sdk():
    with pytest.raises(openai.BadRequestError) as raised:
        client(temperature=3).invoke(ASK)
    assert raised.value.body["param"] == "temperature"
    with pytest.raises(openai.AuthenticationError):
        client(api_key="acs-bm-wrong").invoke(ASK)


@pytest.mark.parametrize("arguments", [{"use_responses_api": True}, {"reasoning": {"effort": "low"}}, {"truncation": "auto"}])
def test_responses_api_is_refused_with_what_is_served(arguments):
    with pytest.raises(openai.NotFoundError) as raised:
        client(seed=None, **arguments).invoke(ASK)
    assert "the Responses API is not served" in raised.value.body["message"]
