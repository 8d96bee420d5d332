"""The Hermes agent, unmodified, against a server whose model is told what to say:

    python -m bench.hermes [--tiny] [--only second-turn]

One-shot, a loop of tools, three sub-agents at once, a second turn, and a gateway with four users.
What is measured: how much of each prompt was kept, and the time to the first token of second turns
beside that of cold ones. The model has Qwen3.5's shape (0.3B; --tiny: next to nothing), weights of
noise, a window of 131,072 tokens and a template that has tools first.

Hermes is installed into a venv under .cache/bench, once.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from bench.rows import keep
from bench.scripted import Asked, Served, serve_scripted
from bench.servers import free_port
from bench.shapes import FOLDER, TINY, Shape, qwen35
from flm.core.alike import common_length
from flm.hub.pull import pull
from flm.settings import Settings

HERMES = "hermes-agent==0.19.0"
GATEWAY_NEEDS = "aiohttp==3.14.1"
WINDOW = 65_536
KEY = "a-key-of-the-gateway"
RUN_S_MAX, START_S_MAX = 1800, 180
USERS = 4

CALL = "\n</think>\n\n<tool_call>\n<function={name}>\n{parameters}\n</function>\n</tool_call>"
SAY = "\n</think>\n\n{text}"
TASKS = [{"goal": f"Sub-task {name}: say {name}"} for name in ("alpha", "beta", "gamma")]


def script(prompt: str) -> str:
    """What a model would say: a call where the user's last words ask for one, else an answer."""
    words = prompt.rpartition("<|im_start|>user\n")[2]
    if "<tool_response>" in words:
        return SAY.format(text="The tool was run.")
    if "run the command" in words:
        return _call("terminal", command="echo flm-was-here")
    if "split this in three" in words:
        return _call("delegate_task", tasks=json.dumps(TASKS))
    return SAY.format(text="Hello there.")


def _call(name: str, **arguments: str) -> str:
    said = (f"<parameter={key}>\n{value}\n</parameter>" for key, value in arguments.items())
    return CALL.format(name=name, parameters="\n".join(said))


def installed() -> Path:
    """The folder of Hermes' commands."""
    folder = FOLDER / HERMES.replace("==", "-")
    if not (folder / "bin" / "hermes").exists():
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, HERMES, GATEWAY_NEEDS], check=True)
    return folder / "bin"


@dataclass(frozen=True, slots=True)
class Agent:
    """One home of Hermes, pointed at a server."""

    bin: Path
    home: Path
    served: Served

    def run(self, *words: str) -> str:
        """What it prints; raises SystemExit where it fails."""
        said = subprocess.run(
            [str(self.bin / "hermes"), *words],
            capture_output=True,
            text=True,
            env=self._environment,
            cwd=self.home,
            timeout=RUN_S_MAX,
        )
        if said.returncode:
            raise SystemExit(f"hermes {' '.join(words)}: {said.stdout}\n{said.stderr}")
        return said.stdout

    @contextmanager
    def gateway(self) -> Iterator[httpx.Client]:
        """Its own OpenAI-style endpoint, behind which every user has an agent."""
        port = free_port()
        lines = (f"API_SERVER_KEY={KEY}", "API_SERVER_ENABLED=true", f"API_SERVER_PORT={port}")
        (self.home / ".env").write_text("\n".join(lines) + "\n")
        command = [str(self.bin / "hermes"), "gateway", "run"]
        with open(self.home / "gateway.log", "w") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, cwd=self.home
            )
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}",
                headers={"Authorization": f"Bearer {KEY}"},
                timeout=RUN_S_MAX,
            ) as client:
                _until_up(client, process)
                yield client
        finally:
            process.terminate()
            process.wait(timeout=60)

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "HERMES_HOME": str(self.home),
        }


@contextmanager
def hermes(model: Path, settings: Settings) -> Iterator[Agent]:
    """An agent of its own, and a server that has kept nothing yet."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        serve_scripted(model, settings, script) as served,
    ):
        config = {
            "model": {
                "provider": "custom",
                "base_url": f"{served.url}/v1",
                "default": httpx.get(f"{served.url}/v1/models").json()["data"][0]["id"],
                "api_key": "local",
            }
        }
        (Path(home) / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        yield Agent(installed(), Path(home), served)


def _until_up(client: httpx.Client, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            client.get("/health")
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit("hermes gateway did not start")


def one_shot(agent: Agent) -> dict[str, Any]:
    report = agent.home / "usage.json"
    said = agent.run("-z", "Say hello.", "--usage-file", str(report))
    assert "Hello there." in said, said
    return {"reported": json.loads(report.read_text())}


def tool_loop(agent: Agent) -> dict[str, Any]:
    said = agent.run("--yolo", "-z", "Please run the command.")
    assert "The tool was run." in said, said
    assert any(
        "flm-was-here" in asked.text.rpartition("<tool_response>")[2] for asked in _main(agent)
    )
    return {}


def sub_agents(agent: Agent) -> dict[str, Any]:
    said = agent.run("--yolo", "-z", "Please split this in three.")
    assert "The tool was run." in said, said
    for task in TASKS:
        assert any(task["goal"] in asked.text for asked in _main(agent)), task
    return {}


def second_turn(agent: Agent) -> dict[str, Any]:
    agent.run("chat", "-Q", "-q", "Say hello.")
    first = _main(agent)[-1]
    agent.run("chat", "-Q", "-c", "-q", "And again, please.")
    second = _main(agent)[-1]
    return {
        "cold_s": first.first_s,
        "second_s": second.first_s,
        "ratio": second.first_s / first.first_s,
    }


def gateway(agent: Agent) -> dict[str, Any]:
    """Four users at once, then each once more."""
    model = "hermes-agent"

    def ask(client: httpx.Client, *texts: str) -> str:
        messages = [{"role": "user", "content": text} for text in texts]
        reply = client.post("/v1/chat/completions", json={"model": model, "messages": messages})
        reply.raise_for_status()
        return str(reply.json()["choices"][0]["message"]["content"])

    with agent.gateway() as client, ThreadPoolExecutor(USERS) as users:
        questions = [f"User {user} says hello." for user in range(USERS)]
        start = len(agent.served.asked)
        for answer in users.map(lambda text: ask(client, text), questions):
            assert "Hello there." in answer, answer
        at_once = _main(agent, start)[:USERS]
    alone_s = min(asked.first_s for asked in at_once if not asked.cached)
    began = min(asked.at for asked in at_once)
    all_s = max(asked.at + asked.first_s for asked in at_once) - began
    return {"one_s": alone_s, "all_four_s": all_s, "ratio": all_s / alone_s}


SCENES = {
    "one-shot": one_shot,
    "tool-loop": tool_loop,
    "sub-agents": sub_agents,
    "second-turn": second_turn,
    "gateway": gateway,
}


def _main(agent: Agent, start: int = 0) -> list[Asked]:
    """Prompts of agents, without titles and the like."""
    return [asked for asked in agent.served.asked[start:] if "<tools>" in asked.text]


def at_least(asked: list[Asked]) -> list[tuple[int, int]]:
    """Of each prompt: the tokens up to the last cut that an earlier one has in common with it, and
    those that were kept.
    """
    rows = []
    for index, each in enumerate(asked):
        least = 0
        for before in asked[:index]:
            common = common_length(before.tokens, each.tokens)
            least = max(least, *(cut for cut in (0, *before.cuts) if cut <= common))
        rows.append((least, each.cached))
    return rows


def settings_for(lanes: int = USERS) -> Settings:
    return replace(
        Settings(),
        model_path=FOLDER.parent / "flm",
        ctx_len=WINDOW,
        lanes=lanes,
        prefix_disk_mb=0,
    )


def model_of(shape: Shape, settings: Settings) -> Path:
    return qwen35(pull("smollm2:135m", settings, progress=lambda *_: None), shape=shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a model of next to nothing")
    parser.add_argument("--only", choices=SCENES, action="append")
    asked = parser.parse_args()
    settings = settings_for()
    shape = (
        TINY if asked.tiny else replace(Shape(), name="qwen35-0.3B-128k", context_length=131_072)
    )
    model = model_of(shape, settings)
    for name in asked.only or SCENES:
        with hermes(model, settings) as agent:
            values = SCENES[name](agent)
            rows = at_least(agent.served.asked)
        short = max(least - cached for least, cached in rows)
        prompts = [len(each.tokens) for each in agent.served.asked]
        keep(
            "hermes",
            name,
            model=shape.name,
            prompts=prompts,
            short=short,
            at_least_and_kept=rows,
            **values,
        )


if __name__ == "__main__":
    main()
