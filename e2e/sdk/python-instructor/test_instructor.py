"""instructor, unmodified: objects from chat completions. Where an object does not validate, it sends the answer back."""

import instructor
import pytest
from instructor.core.exceptions import InstructorRetryException
from openai import OpenAI
from pydantic import BaseModel, field_validator

MODEL = "llama-8b-instruct"
ASK = [{"role": "user", "content": "Invent a city."}]


class City(BaseModel):
    name: str
    people: int


def client(mode):
    return instructor.from_openai(OpenAI(max_retries=0), mode=mode)


def arguments(retries=0):
    return {"model": MODEL, "messages": ASK, "max_tokens": 200, "seed": 7, "max_retries": retries}


# instructor.Mode.JSON and MD_JSON leave the schema to the model, and the mock follows no instructions.
@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_object(mode):
    city = client(mode).create(response_model=City, **arguments())
    *_, partial = client(mode).create_partial(response_model=City, **arguments())
    assert city.name and partial.model_dump() == city.model_dump()


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_answers_that_do_not_validate_are_sent_back(mode):
    seen = []

    class Picky(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def third(cls, name):
            seen.append(name)
            if len(seen) < 3:
                raise ValueError("another one")
            return name

    assert client(mode).create(response_model=Picky, **arguments(retries=3)).name
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("mode", "change", "text"),
    [
        (instructor.Mode.TOOLS, {"temperature": 3}, "temperature"),
        (instructor.Mode.RESPONSES_TOOLS, {}, "Responses API is not served.*chat/completions"),
    ],
)
def test_errors_name_what_is_wrong(mode, change, text):
    request = {"model": MODEL, "messages": ASK, "max_retries": 0} | change
    with pytest.raises(InstructorRetryException, match=text):
        client(mode).create(response_model=City, **request)
