"""Coding agents, unmodified, against a server whose model is told what to say:

    python -m bench.apps [--only pi]

pi, opencode, Qwen Code and Continue: a chat, a command run and gone on from, and the conversation
continued by another process. What is measured is how much of each prompt was kept. The model is
next to nothing, in Qwen3.5's shape, with a window of 131,072 tokens and a template that has tools
first.

They are installed by npm into .cache/bench, once; Node 20 is enough for these versions.
"""

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench.hermes import CALL, SAY, WINDOW, at_least, model_of, settings_for
from bench.rows import keep
from bench.scripted import Served, serve_scripted
from bench.shapes import FOLDER, TINY
from flm.settings import Settings

RUN_S_MAX = 300
CHAT, TOOL, AGAIN = "Say hello.", "Please run the command.", "And again, please."
ANSWER, RAN, OUTPUT = "Hello there.", "The tool was run.", "flm-was-here"


@dataclass(frozen=True, slots=True)
class App:
    """`configure` writes its settings into a home, and gives the words that each call begins with;
    `again` are those by which it goes on from where it was.
    """

    package: str
    command: str
    tool: str
    configure: Callable[[Path, str, str], list[str]]
    again: str
    arguments: Mapping[str, str] = field(default_factory=dict)  # besides the command

    def script(self, prompt: str) -> str:
        """What a model would say: a call where the last words ask for one, else an answer."""
        words = prompt.rpartition("<|im_start|>user\n")[2]
        if "<tool_response>" in words:
            return SAY.format(text=RAN)
        if TOOL in words and f'"name": "{self.tool}"' in prompt:
            said = {"command": f"echo {OUTPUT}", **self.arguments}
            lines = (f"<parameter={key}>\n{value}\n</parameter>" for key, value in said.items())
            return CALL.format(name=self.tool, parameters="\n".join(lines))
        return SAY.format(text=ANSWER)

    def installed(self) -> Path:
        """Its command."""
        folder = FOLDER / self.package.strip("@").replace("/", "-").replace("@", "-")
        command = folder / "node_modules" / ".bin" / self.command
        if not command.exists():
            folder.mkdir(parents=True, exist_ok=True)
            npm = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder)]
            subprocess.run([*npm, self.package], check=True)
        return command


def _pi(home: Path, url: str, model: str) -> list[str]:
    about = {"id": model, "reasoning": True, "contextWindow": WINDOW, "maxTokens": 8192}
    provider = {"baseUrl": url, "api": "openai-completions", "apiKey": "local", "models": [about]}
    _write(home / ".pi" / "agent" / "models.json", {"providers": {"flm": provider}})
    return ["--provider", "flm", "--model", model, "--offline", "-p"]


def _opencode(home: Path, url: str, model: str) -> list[str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": url, "apiKey": "local"},
        "models": {model: {"limit": {"context": WINDOW, "output": 8192}}},
    }
    settings = {"provider": {"flm": provider}, "model": f"flm/{model}", "autoupdate": False}
    _write(home / ".config" / "opencode" / "opencode.json", settings)
    return ["run", "--auto"]


def _qwen(home: Path, url: str, model: str) -> list[str]:
    environment = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "local", "OPENAI_MODEL": model}
    lines = "".join(f"{name}={value}\n" for name, value in environment.items())
    (home / ".env").write_text(lines)
    return ["--auth-type", "openai", "-y"]


def _continue(home: Path, url: str, model: str) -> list[str]:
    about = {
        "name": model,
        "provider": "openai",
        "model": model,
        "apiBase": url,
        "apiKey": "local",
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": {"contextLength": WINDOW, "maxTokens": 4096},
    }
    file = home / "config.yaml"  # JSON is YAML
    _write(file, {"name": "flm", "version": "1.0.0", "schema": "v1", "models": [about]})
    return ["--config", str(file), "--auto", "-p"]


def _write(path: Path, settings: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings))


APPS = {
    "pi": App("@earendil-works/pi-coding-agent@0.74.2", "pi", "bash", _pi, "-c"),
    "opencode": App(
        "opencode-ai@1.18.33", "opencode", "bash", _opencode, "-c", {"description": "says it"}
    ),
    "qwen-code": App(
        "@qwen-code/qwen-code@0.15.10",
        "qwen",
        "run_shell_command",
        _qwen,
        "-c",
        {"is_background": "false"},
    ),
    "continue": App("@continuedev/cli@1.5.47", "cn", "Bash", _continue, "--resume"),
}


@contextmanager
def told(app: App, model: Path, settings: Settings) -> Iterator[tuple[Served, Callable[..., str]]]:
    """A server that has kept nothing yet, and how to tell the app, in a home of its own."""
    command = app.installed()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        serve_scripted(model, settings, app.script) as served,
    ):
        home, work = Path(folder), Path(folder) / "work"
        work.mkdir()
        name = httpx.get(f"{served.url}/v1/models").json()["data"][0]["id"]
        words = app.configure(home, f"{served.url}/v1", name)

        def tell(text: str, *, again: bool = False) -> str:
            run = subprocess.run(
                [str(command), *words, *([app.again] if again else []), text],
                capture_output=True,
                text=True,
                env={"PATH": os.environ["PATH"], "HOME": str(home)},
                cwd=work,
                stdin=subprocess.DEVNULL,
                timeout=RUN_S_MAX,
            )
            if run.returncode:
                raise SystemExit(f"{app.command} {text}: {run.stdout}\n{run.stderr}")
            return run.stdout

        yield served, tell


def converse(served: Served, tell: Callable[..., str]) -> None:
    """It gets through, the command was run, and its output came back."""
    assert ANSWER in tell(CHAT)
    assert RAN in tell(TOOL)
    assert any(OUTPUT in each.text.rpartition("<tool_response>")[2] for each in served.asked)
    assert ANSWER in tell(AGAIN, again=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=APPS, action="append")
    settings = settings_for()
    model = model_of(TINY, settings)
    for name in parser.parse_args().only or APPS:
        with told(APPS[name], model, settings) as (served, tell):
            converse(served, tell)
        prompts = [len(each.tokens) for each in served.asked]
        rows = at_least(served.asked)
        keep("apps", name, app=APPS[name].package, prompts=prompts, at_least_and_kept=rows)


if __name__ == "__main__":
    main()
