"""Unmodified JavaScript clients against a real server, where there are node and npm."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.server.house import House

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="needs node"),
]

SCRIPTS = Path(__file__).parent / "js"
CALL = '<tool_call>{"name": "look", "arguments": {"at": "the sky"}}</tool_call>'
BIRD = {"name": "heron", "legs": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the scripts, and what they need beside them."""
    folder = tmp_path_factory.mktemp("js")
    shutil.copytree(SCRIPTS, folder, dirs_exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--silent"]
    subprocess.run(command, cwd=folder, check=True, timeout=200)
    return folder


def told(folder: Path, script: str, house: House) -> list[Any]:
    command = ["node", script, f"{house.url}/v1"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_openai_js(house: House, folder: Path) -> None:
    house.say("Hello.", "Hello there.", f"I look.\n{CALL}", "Blue.", json.dumps(BIRD), "Hi.")
    expected = ["Hello.", "Hello there.", True, "Blue.", ["the sky"], BIRD, "Hi."]
    assert told(folder, "openai.mjs", house) == expected


def test_the_ai_sdk_by_chats_and_by_responses(house: House, folder: Path) -> None:
    said = ("Hello.", "One.", "Two.", f"I look.\n{CALL}", "Blue.", json.dumps(BIRD))
    house.say(*said, *said)
    expected = ["Hello.", "One.", "Two.", True, "Blue.", ["the sky"], BIRD]
    assert told(folder, "ai_sdk.mjs", house) == expected * 2
