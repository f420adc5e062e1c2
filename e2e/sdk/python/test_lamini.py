"""Lamini's own client, unmodified, with its base URL changed to that of the gateway's Lamini form.

The client imports packages for data sets and training that completions do not need; the ones that are not installed are
stubs here.
"""

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import pytest

pytestmark = pytest.mark.mock

stubs = []
UNUSED = ["aiohttp", "azure", "config", "faiss", "jsonlines", "numpy", "pandas", "sqlalchemy", "sqlglot", "tqdm", "yaml"]


def stub(name):
    """Replaces a package and what the client imports from below it."""
    try:
        importlib.import_module(name)
    except ImportError:
        module = MagicMock(name=name)
        module.__path__, module.__spec__ = [], ModuleSpec(name, None)
        sys.modules[name] = module
        stubs.append(name)


for package in UNUSED + ["azure.storage", "azure.storage.blob", "sqlalchemy.orm", "sqlglot.errors", "sqlglot.expressions"]:
    stub(package)

import lamini  # noqa: E402
from lamini.error.error import APIError, AuthenticationError, UserError  # noqa: E402

for package in stubs:  # other modules must not see them
    del sys.modules[package]

MODEL = "meta-llama/Llama-3.1-8B"  # the checkpoint; the short id is "faulty"


@pytest.fixture
def client():
    return make_client()


def make_client(model=MODEL, key=None):
    base = os.environ["FAULTY_BASE_URL"].removesuffix("/v1") + "/lamini"
    return lamini.Lamini(model_name=model, api_key=key or os.environ["FAULTY_API_KEY"], api_url=base)


def test_text(client):
    text = client.generate("Once upon a time", max_new_tokens=8)
    assert isinstance(text, str)


def test_text_of_the_rest_of_the_context(client):
    assert isinstance(client.generate("Once upon a time"), str)


def test_list(client):
    texts = client.generate(["Once upon a time", "The capital of France is"], max_new_tokens=8)
    assert len(texts) == 2 and all(isinstance(t, str) for t in texts)


@pytest.mark.parametrize("times", [1, 60])  # the client sends the type behind the prompt, which may be long
def test_output_type(client, times):
    output = client.generate(
        "How old is Carl, the llama with a hat? " * times,
        output_type={"name": "str", "age": "int", "height": "float", "hat": "bool"},
        max_new_tokens=200,
    )
    assert list(output) == ["name", "age", "height", "hat"]
    assert [type(v) for v in output.values()] == [str, int, float, bool]


def test_list_with_output_type(client):
    outputs = client.generate(
        ["How old is Carl, the llama with a hat?", "How old is Paul, the llama with a hat?"],
        output_type={"age": "int", "units": "str"},
    )
    assert len(outputs) == 2
    assert all(type(o["age"]) is int and type(o["units"]) is str and len(o) == 2 for o in outputs)


def test_truncated_object_is_text(client):
    output = client.generate("Carl", output_type={"age": "int", "units": "str"}, max_new_tokens=2)
    assert isinstance(output, str)


def test_max_tokens_counts_prompt_and_output(client):
    assert isinstance(client.generate("Once upon a time", max_tokens=12), str)
    with pytest.raises(UserError, match="max_tokens: got 2 tokens for prompt and output together"):
        client.generate("Once upon a time", max_tokens=2)


def test_model_names(client):
    assert isinstance(client.generate("a", model_name="faulty", max_new_tokens=1), str)
    with pytest.raises(UserError, match='no model "llama-9b" here'):
        client.generate("a", model_name="llama-9b", max_new_tokens=1)


def test_the_errors_show_their_message(client):
    with pytest.raises(UserError, match='output_type: got "age" with the string "list"; expected'):
        client.generate("a", output_type={"age": "list"})
    with pytest.raises(UserError, match="max_new_tokens: got 0; expected an integer of at least 1"):
        client.generate("a", max_new_tokens=0)
    with pytest.raises(AuthenticationError, match="no valid API key"):
        make_client(key="acs-bm-wrong").generate("a")


def test_what_is_not_served_says_so(client):
    served = "POST /lamini/v1/completions and POST /lamini/v2/completions are served"
    with pytest.raises(APIError, match=served):
        client.version()
    with pytest.raises(APIError, match=served):
        client.model_downloader.list()
    with pytest.raises(APIError, match=served):
        lamini.StreamingCompletion(api_key=client.api_key, api_url=client.api_url).submit("a", MODEL)
