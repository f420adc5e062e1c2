"""Runs every snippet of the tutorial as its reader would: with the two variables set, in an empty folder."""

import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

import pytest

PAGES = sorted((pathlib.Path(__file__).parents[3] / "docs" / "tutorial").glob("*.md"))
SNIPPET = re.compile(r"^```(\w+)\n(.*?)^```\n(?:<!-- prints: (.*?) -->\n)?", re.MULTILINE | re.DOTALL)


def snippets():
    for page in PAGES:
        for number, found in enumerate(SNIPPET.finditer(page.read_text("utf-8")), 1):
            language, text, prints = found.groups()
            yield pytest.param(language, text, prints, id=f"{page.stem}-{number}")


def run(language, text, folder, model="llama-8b", **environment):
    base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    filled = text.replace("{{base}}", base.removesuffix("/v1")).replace("{{key}}", key).replace("{{model}}", model)
    command = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}[language]
    return subprocess.run(
        [*command, filled], cwd=folder, capture_output=True, text=True, timeout=120, env=os.environ | environment
    )


@pytest.mark.parametrize("language, text, prints", list(snippets()))
def test_snippet(language, text, prints, tmp_path):
    done = run(language, text, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    if language == "python" or "curl" in text:
        assert prints, "what it prints is not said"
    if prints:
        assert re.search(prints.replace("{{model}}", "llama-8b"), done.stdout), done.stdout + done.stderr


def resumption():
    return next(p.values[1] for p in snippets() if "it broke off" in p.values[1])


def test_a_broken_stream_is_gone_on_with(tmp_path):
    fault = json.dumps({"kind": "reset_mid", "after_events": 3, "times": 2}).encode()
    urllib.request.urlopen(os.environ["FAULTY_MOCK"] + "/mock/fault", fault).read()
    gateway = {"OPENAI_BASE_URL": os.environ["FAULTY_BASE_URL"], "OPENAI_API_KEY": os.environ["FAULTY_API_KEY"]}
    done = run("python", resumption(), tmp_path, model="faulty", **gateway)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("it broke off, and goes on") == 2
    assert done.stdout.splitlines()[-1].strip()


def test_a_refused_stream_is_not_asked_for_again(tmp_path):
    done = run("python", resumption(), tmp_path, OPENAI_API_KEY="acs-bm-wrong")
    assert done.returncode == 1
    assert "no valid API key" in done.stderr


def test_snippets_are_found():
    assert len(PAGES) >= 10
    assert len(list(snippets())) >= 20
