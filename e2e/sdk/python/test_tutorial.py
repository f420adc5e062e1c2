"""Runs every snippet of the tutorial as its reader would: with the two variables set, in an empty folder."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

PAGES = sorted((pathlib.Path(__file__).parents[3] / "docs" / "tutorial").glob("*.md"))
SNIPPET = re.compile(r"^```(\w+)\n(.*?)^```\n(?:<!-- prints: (.*?) -->\n)?", re.MULTILINE | re.DOTALL)


def snippets():
    for page in PAGES:
        for number, found in enumerate(SNIPPET.finditer(page.read_text("utf-8")), 1):
            language, text, prints = found.groups()
            yield pytest.param(language, text, prints, id=f"{page.stem}-{number}")


@pytest.mark.parametrize("language, text, prints", list(snippets()))
def test_snippet(language, text, prints, tmp_path):
    base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    filled = text.replace("{{base}}", base.removesuffix("/v1")).replace("{{key}}", key).replace("{{model}}", "llama-8b")
    command = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}[language]
    done = subprocess.run([*command, filled], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    if language == "python" or "curl" in text:
        assert prints, "what it prints is not said"
    if prints:
        assert re.search(prints.replace("{{model}}", "llama-8b"), done.stdout), done.stdout + done.stderr


def test_snippets_are_found():
    assert len(PAGES) >= 10
    assert len(list(snippets())) >= 20
