"""Runs every snippet of the tutorial as a reader would: with the two environment variables set, in an empty folder."""

import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

import pytest

NODE = pathlib.Path(__file__).parents[1] / "node"
ROOT = pathlib.Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorial").glob("*.md"))]
SNIPPET = re.compile(r"^```(\w+)\n(.*?)^```\n(?:<!-- prints: (.*?) -->\n)?", re.MULTILINE | re.DOTALL)


def snippets():
    for page in PAGES:
        for number, match in enumerate(SNIPPET.finditer(page.read_text("utf-8")), 1):
            language, text, prints = match.groups()
            if language in ("text", "yaml", "bash"):
                continue  # an example of a file; what the Go test of README runs
            yield pytest.param(language, text, prints, id=f"{page.stem}-{number}")


def run(language, text, folder, model="llama-8b", **environment):
    base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    code = text.replace("http://127.0.0.1:8080", base.removesuffix("/v1")).replace('"llama-8b"', f'"{model}"')
    if language == "js":  # import finds packages beside the file
        (folder / "node_modules").symlink_to(NODE / "node_modules")
        (folder / "snippet.mjs").write_text(code, "utf-8")
        command, code = ["node"], "snippet.mjs"
    else:
        command = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}[language]
    return subprocess.run(
        [*command, code], cwd=folder, capture_output=True, text=True, timeout=600, env=os.environ | environment, input=key + "\n"
    )


@pytest.mark.parametrize("language, text, prints", list(snippets()))
def test_snippet(language, text, prints, tmp_path):
    result = run(language, text, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    if language in ("python", "js") or "curl" in text:
        assert prints, "the snippet lacks a <!-- prints: … --> comment"
    if prints:
        assert re.search(prints, result.stdout), result.stdout + result.stderr


def resume_snippet():
    return next(p.values[1] for p in snippets() if "it broke off" in p.values[1])


def test_interrupted_stream_is_resumed(tmp_path):
    # after the first event: the mock may end a text after a few tokens
    fault = json.dumps({"kind": "reset_mid", "after_events": 1, "times": 2}).encode()
    urllib.request.urlopen(os.environ["FAULTY_MOCK"] + "/mock/fault", fault).read()
    gateway = {"OPENAI_BASE_URL": os.environ["FAULTY_BASE_URL"], "OPENAI_API_KEY": os.environ["FAULTY_API_KEY"]}
    result = run("python", resume_snippet(), tmp_path, model="faulty", **gateway)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("it broke off, and goes on") == 2
    assert result.stdout.splitlines()[-1].strip()


def test_rejected_stream_is_not_retried(tmp_path):
    result = run("python", resume_snippet(), tmp_path, OPENAI_API_KEY="acs-bm-wrong")
    assert result.returncode == 1
    assert "no valid API key" in result.stderr


def test_snippets_are_found():
    assert len(PAGES) >= 10
    assert len(list(snippets())) >= 20
