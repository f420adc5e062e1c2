"""Tests of files and batches with the official Python SDK, unmodified, and of the snippets of kluster.ai's documentation."""

import json
import subprocess
import sys
import time

import openai
import pytest
from openai import OpenAI

MODEL = "llama-8b"


@pytest.fixture
def client():
    return OpenAI(max_retries=0)


def lines(count, **body):
    """Returns an input file of so many lines."""
    body = {"model": MODEL, "max_tokens": 4, "temperature": 0} | body
    return b"".join(
        json.dumps(
            {"custom_id": f"line-{i}", "method": "POST", "url": "/v1/completions", "body": body | {"prompt": f"Fact {i}:"}}
        ).encode()
        + b"\n"
        for i in range(count)
    )


def wait(client, batch):
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    return batch


def test_file_to_results(client):
    uploaded = client.files.create(
        file=("facts.jsonl", lines(20)), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (uploaded.object, uploaded.filename, uploaded.purpose) == ("file", "facts.jsonl", "batch")
    assert uploaded.expires_at - uploaded.created_at == 3600
    assert client.files.retrieve(uploaded.id) == uploaded
    batch = client.batches.create(
        input_file_id=uploaded.id,
        endpoint="/v1/completions",
        completion_window="24h",
        metadata={"run": "7"},
        output_expires_after={"anchor": "created_at", "seconds": 7200},
    )
    assert batch.status == "validating" and batch.metadata == {"run": "7"}
    batch = wait(client, batch)
    assert batch.status == "completed" and batch.model == MODEL
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (20, 20, 0)
    assert batch.usage.output_tokens > 0 and batch.usage.input_tokens_details.cached_tokens >= 0
    assert batch.model_extra["waiting_for"] is None
    output = client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output" and output.expires_at - batch.completed_at == 7200
    content = client.files.content(output.id)
    assert len(content.content) == output.bytes
    results = {r["custom_id"]: r["response"] for r in map(json.loads, content.text.splitlines())}
    assert len(results) == 20
    live = client.completions.create(model=MODEL, prompt="Fact 7:", max_tokens=4, temperature=0)
    assert results["line-7"]["body"]["choices"][0]["text"] == live.choices[0].text
    assert results["line-7"]["status_code"] == 200
    for file in (uploaded.id, output.id):
        assert client.files.delete(file).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.content(file)


def test_lists_are_paged(client):
    files = [client.files.create(file=(f"{i}.jsonl", lines(1)), purpose="batch").id for i in range(5)]
    batches = [
        client.batches.create(input_file_id=f, endpoint="/v1/completions", completion_window="1h").id for f in files
    ]
    assert [f.id for f in client.files.list(limit=2) if f.id in files] == files[::-1]
    assert [f.id for f in client.files.list(order="asc", purpose="batch") if f.id in files] == files
    assert [b.id for b in client.batches.list(limit=2) if b.id in batches] == batches[::-1]
    first = client.batches.list(limit=2)
    assert len(first.data) == 2 and first.has_more
    for batch in batches:
        assert wait(client, client.batches.retrieve(batch)).status == "completed"


def test_cancel(client):
    file = client.files.create(file=("long.jsonl", lines(2000, max_tokens=200)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    with pytest.raises(openai.ConflictError) as raised:
        client.files.delete(file.id)
    assert raised.value.code == "file_in_use"
    while client.batches.retrieve(batch.id).status == "validating":
        time.sleep(0.05)
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = wait(client, batch)
    assert batch.status == "cancelled"
    assert batch.request_counts.completed + batch.request_counts.failed == 2000
    last = json.loads(client.files.content(batch.error_file_id).text.splitlines()[-1])
    assert last["error"]["code"] == "batch_cancelled" and last["response"] is None
    with pytest.raises(openai.ConflictError) as raised:
        client.batches.cancel(batch.id)
    assert raised.value.code == "batch_not_cancellable"


def test_wrong_lines_are_listed(client):
    text = lines(1) + b"{}\n" + lines(1)
    file = client.files.create(file=("wrong.jsonl", text), purpose="batch")
    batch = wait(client, client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"))
    assert batch.status == "failed" and batch.output_file_id is None
    assert [(e.line, e.code) for e in batch.errors.data] == [(2, "invalid_request"), (3, "duplicate_custom_id")]


def test_errors_name_what_is_wrong(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.files.create(file=("x.jsonl", b"{}"), purpose="fine-tune")
    assert raised.value.param == "purpose"
    file = client.files.create(file=("x.jsonl", lines(1)), purpose="batch")
    for change, param in (
        ({"completion_window": "2h"}, "completion_window"),
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
    ):
        with pytest.raises(openai.BadRequestError) as raised:
            client.batches.create(
                **{"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"} | change
            )
        assert raised.value.param == param
    for call in (client.files.retrieve, client.files.delete, client.files.content, client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            call("file-none")


def test_idempotency_key(client):
    file = client.files.create(file=("x.jsonl", lines(1)), purpose="batch").id
    key = {"extra_headers": {"Idempotency-Key": f"test {file}"}}
    first, again = (
        client.batches.create(input_file_id=file, endpoint="/v1/completions", completion_window="24h", **key) for _ in range(2)
    )
    assert first.id == again.id
    with pytest.raises(openai.ConflictError) as raised:
        client.batches.create(input_file_id=file, endpoint="/v1/completions", completion_window="12h", **key)
    assert raised.value.code == "idempotency_conflict"


# The snippets of kluster.ai's API reference, one after another as in its quickstart. The base URL, the key, the model and
# the endpoint differ, and the lines are of completions: base models do not chat.
KLUSTER_PYTHON = '''
import json, os
from openai import OpenAI
import time

client = OpenAI(
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
)

file_name = "mybatchtest.jsonl"
with open(file_name, "w") as file:
    for i in range(4):
        file.write(json.dumps({"custom_id": f"request-{i}", "method": "POST", "url": "/v1/completions",
            "body": {"model": "llama-8b", "prompt": "The capital of France is", "max_tokens": 8}}) + "\\n")

batch_input_file = client.files.create(
    file=open(file_name, "rb"),
    purpose="batch"
)

print(batch_input_file.to_dict())

batch_request = client.batches.create(
    input_file_id=batch_input_file.id,
    endpoint="/v1/completions",
    completion_window="24h",
)

print(batch_request.to_dict())

# Poll the Batch status until it's complete
while True:
    batch_status = client.batches.retrieve(batch_request.id)
    print("Batch status: {}".format(batch_status.status))
    print(
        f"Completed tasks: {batch_status.request_counts.completed} / {batch_status.request_counts.total}"
    )

    if batch_status.status.lower() in ["completed", "failed", "cancelled"]:
        break

    time.sleep(1)

print(batch_status.to_dict())

print(client.batches.list(limit=2).to_dict())

# Get the status of the Batch, which returns the output_file_id
batch_status = client.batches.retrieve(batch_request.id)

# Check if the Batch completed successfully
if batch_status.status.lower() == "completed":
    # Retrieve the results
    result_file_id = batch_status.output_file_id
    results = client.files.content(result_file_id).content

    # Save results to a file
    result_file_name = "batch_results.jsonl"
    with open(result_file_name, "wb") as file:
        file.write(results)
    print(f"Results saved to {result_file_name}")
else:
    print(f"Batch failed with status: {batch_status.status}")
'''

KLUSTER_CURL = r'''
id() { sed -E 's/.*"id": ?"([^"]+)".*/\1/'; }
file=$(curl -s $OPENAI_BASE_URL/files%s \
    -H "Authorization: Bearer $OPENAI_API_KEY" \
    -H "Content-Type: multipart/form-data" \
    -F "file=@mybatchtest.jsonl" \
    -F "purpose=batch" | tee /dev/stderr | id)
BATCH_ID=$(curl -s $OPENAI_BASE_URL/batches \
    -H "Authorization: Bearer $OPENAI_API_KEY" \
    -H "Content-Type: application/json" \
    -d '{
    "input_file_id": "'$file'",
    "endpoint": "/v1/completions",
    "completion_window": "24h"
    }' | tee /dev/stderr | sed -E 's/^\{"id": ?"([^"]+)".*/\1/')
curl -s $OPENAI_BASE_URL/batches/$BATCH_ID/cancel \
    -H "Authorization: Bearer $OPENAI_API_KEY" \
    -H "Content-Type: application/json" \
    -X POST
curl -s $OPENAI_BASE_URL/batches/$BATCH_ID \
    -H "Authorization: Bearer $OPENAI_API_KEY" \
    -H "Content-Type: application/json"
curl -s $OPENAI_BASE_URL/batches \
    -H "Authorization: Bearer $OPENAI_API_KEY"
curl -s $OPENAI_BASE_URL/files/$file/content \
    -H "Authorization: Bearer $OPENAI_API_KEY" > batch_output.jsonl
cmp mybatchtest.jsonl batch_output.jsonl
'''


def run(folder, *command):
    """Runs a command, and returns what it prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_snippets_of_kluster_python(tmp_path):
    printed = run(tmp_path, sys.executable, "-c", KLUSTER_PYTHON)
    assert "Completed tasks: 4 / 4" in printed and printed.endswith("Results saved to batch_results.jsonl\n")
    results = [json.loads(line) for line in (tmp_path / "batch_results.jsonl").read_text().splitlines()]
    assert {r["custom_id"] for r in results} == {f"request-{i}" for i in range(4)}


@pytest.mark.parametrize("slash", ["", "/"])
def test_snippets_of_kluster_curl(tmp_path, slash):
    (tmp_path / "mybatchtest.jsonl").write_bytes(lines(2000, max_tokens=50))  # it is cancelled before it ends
    printed = run(tmp_path, "bash", "-euo", "pipefail", "-c", KLUSTER_CURL.replace("%s", slash))
    assert '"status":"cancelling"' in printed and '"object":"list"' in printed
