"""inspect_ai, unmodified: an evaluation with and without a tool, by each of its providers that can have another base URL."""

import os

import pytest
from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

MODEL = "llama-8b-instruct"

pytestmark = pytest.mark.mock


@tool
def weather():
    async def execute(city: str) -> str:
        """The weather of a city.

        Args:
            city: The city.
        """
        return "sunny in " + city

    return execute


def run(folder, provider, solver, model=MODEL, gateway="OPENAI", **arguments):
    """Returns the log of an evaluation of one sample."""
    model = get_model(
        f"{provider}/{model}",
        base_url=os.environ[gateway + "_BASE_URL"],
        api_key=os.environ[gateway + "_API_KEY"],
        config=GenerateConfig(max_tokens=99, seed=7, max_retries=0),
        **arguments,
    )
    task = Task(dataset=[Sample("How is the weather in Prague?", target="e")], solver=solver, scorer=includes())
    (log,) = evaluate(task, model=model, display="none", log_dir=str(folder))
    return log


@pytest.mark.parametrize(
    ("provider", "arguments"), [("openai-api/basegate", {}), ("vllm", {}), ("openai", {"responses_api": False})]
)
def test_evaluation(provider, arguments, tmp_path):
    for solver, roles in (([], ["user", "assistant"]), ([use_tools(weather())], ["user", "assistant", "tool", "assistant"])):
        log = run(tmp_path, provider, [*solver, generate()], **arguments)
        assert log.status == "success", log.error
        assert [m.role for m in log.samples[0].messages] == roles
        assert log.results.scores[0].metrics["accuracy"].value == 1
        (usage,) = log.stats.model_usage.values()
        assert usage.input_tokens and usage.output_tokens


def test_responses_api_is_refused_with_what_is_served(tmp_path):
    log = run(tmp_path, "openai", generate())
    assert log.status == "error" and "the Responses API is not served" in log.error.message


@pytest.mark.skipif("ADAPTER" not in os.environ, reason="the gateway has no folder of adapters")
def test_adapter_that_the_provider_loads(tmp_path):
    adapter = os.environ["ADAPTER"]
    for _ in range(2):  # it is there the second time
        # the provider has one address and key for each base model of a process, so this one is an alias
        log = run(tmp_path, "vllm", generate(), model=f"tuned:{adapter}", gateway="FAULTY")
        assert log.status == "success", log.error
        assert log.samples[0].output.model.startswith(adapter + "@")
