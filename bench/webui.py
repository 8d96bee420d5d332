"""Open WebUI, unmodified, against a server whose model is told what to say:

    python -m bench.webui

A chat and its second turn, a tool of its own called and gone on from, a reply that is stopped; with
the titles, tags and follow-ups that it asks for beside them. What is measured is how much of each
prompt was kept. The model is next to nothing, in Qwen3.5's shape, with a template that has tools
first.

It is installed into a venv under .cache/bench, once, without torch and what hangs on it: it loads
these only for embeddings, hearing and reading scans by itself. Python 3.11 or 3.12.
"""

import argparse
import os
import subprocess
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from bench.hermes import CALL, SAY, at_least, model_of, settings_for
from bench.rows import keep
from bench.scripted import Asked, Served, serve_scripted
from bench.servers import free_port
from bench.shapes import FOLDER, TINY
from flm.core.request import Priority
from flm.settings import Settings

WEBUI = "open-webui==0.12.4"
# Not needed until it is told to embed, hear or look by itself; 6 GB with what they take.
LEFT_OUT = (
    "accelerate",
    "einops",
    "faster-whisper",
    "opencv-python-headless",
    "rapidocr",
    "sentence-transformers",
    "transformers",
)
START_S_MAX, REPLY_S_MAX = 300, 120
CHAT, AGAIN, TOOL, LONG = "Say hello.", "And again.", "What time is it?", "Do not stop talking."
ANSWER, RAN, WORD = "Hello there.", "That was the time.", "and so on "
UNTHINKING = "<think>\n\n</think>\n\n"
SIDE = {
    "title": '{"title": "A greeting"}',
    "tags": '{"tags": ["General"]}',
    "follow_ups": '{"follow_ups": ["What then?"]}',
}
SETTINGS = {
    "OFFLINE_MODE": "true",
    "HF_HUB_OFFLINE": "1",
    "WEBUI_AUTH": "False",
    "WEBUI_SECRET_KEY": "of a test",
    "ENABLE_VERSION_UPDATE_CHECK": "False",
    "ANONYMIZED_TELEMETRY": "False",
    "RAG_EMBEDDING_MODEL": "all-minilm:l6-v2",
}
# How it is told of a server, {url}, and of a {model} there; the first is what the docs advise: side
# calls let persons go first, and think nothing.
CONNECTIONS = {
    "openai": {
        "OPENAI_API_BASE_URL": "{url}/v1",
        "OPENAI_API_KEY": "local",
        "OPENAI_API_CONFIGS": '{"0": {"enable": true, "model_ids": ["{model}", "{model}@agent"]}}',
        "TASK_MODEL_EXTERNAL": "{model}@agent",
        "TASK_MODEL_PARAMS": '{"reasoning_effort": "none"}',
        "ENABLE_OLLAMA_API": "False",
        "RAG_EMBEDDING_ENGINE": "openai",
        "RAG_OPENAI_API_BASE_URL": "{url}/v1",
        "RAG_OPENAI_API_KEY": "local",
    },
    "ollama": {
        "OLLAMA_BASE_URL": "{url}",
        "ENABLE_OPENAI_API": "False",
        "RAG_EMBEDDING_ENGINE": "ollama",
        "RAG_OLLAMA_BASE_URL": "{url}",
    },
}


def script(prompt: str) -> str:
    """What a model would say: to its side calls JSON, a call where it was asked the time."""
    words = prompt.rpartition("<|im_start|>user\n")[2]
    if "### Task:" in words:
        wanted = next(said for key, said in SIDE.items() if f'"{key}": ' in words)
        return wanted if prompt.endswith(UNTHINKING) else SAY.format(text=wanted)
    if "<tool_response>" in words:
        return SAY.format(text=RAN)
    if TOOL in words:
        return CALL.format(name="get_current_timestamp", parameters="")
    return SAY.format(text=WORD * 2000 if LONG in words else ANSWER)


def installed() -> Path:
    """Its command."""
    folder = FOLDER / WEBUI.replace("==", "-")
    command = folder / "bin" / "open-webui"
    if not command.exists():
        venv.create(folder, with_pip=True)
        python = str(folder / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        listed = "import importlib.metadata as m; print(*m.requires('open-webui'), sep='\\n')"
        subprocess.run([*pip, "--no-deps", WEBUI], check=True)
        wants = subprocess.run([python, "-c", listed], capture_output=True, text=True, check=True)
        needs = [each for each in wants.stdout.splitlines() if "extra ==" not in each]
        needs = [each for each in needs if each.partition("==")[0] not in LEFT_OUT]
        command.rename(part := command.with_suffix(".part"))
        subprocess.run([*pip, *needs], check=True)
        part.rename(command)
    return command


@dataclass(frozen=True, slots=True)
class Chat:
    """As its page sees one: what it sends, and what it finds in its database."""

    http: httpx.Client
    model: str
    id: str
    last: str  # message
    titled: bool = False

    def say(self, text: str) -> "Chat":
        """Sent, and not waited for. The first message makes the chat."""
        asked, answer = str(uuid4()), str(uuid4())
        message = {"id": asked, "parentId": self.last or None, "role": "user", "content": text}
        tasks = {"follow_up_generation": True}
        tasks |= {} if self.id else {"title_generation": True, "tags_generation": True}
        body = {
            "stream": True,
            "model": self.model,
            "session_id": str(uuid4()),
            "chat_id": self.id or None,
            "id": answer,
            "message_ids": [{"model_id": self.model, "message_id": answer, "modelIdx": 0}],
            "parent_id": self.last or None,
            "user_message": {**message, "childrenIds": [answer], "models": [self.model]},
            "features": {"memory": True},
            "background_tasks": tasks,
        }
        reply = self.http.post("/api/chat/completions", json=body).raise_for_status().json()
        return Chat(self.http, self.model, self.id or reply["chat_id"], answer)

    def stop(self) -> None:
        self.http.post(f"/api/tasks/chat/{self.id}/stop").raise_for_status()

    @property
    def kept(self) -> Mapping[str, Any]:
        found = self.http.get(f"/api/v1/chats/{self.id}").raise_for_status().json()
        return dict(found["chat"]) | {"title": found["title"]}

    @property
    def message(self) -> Mapping[str, Any]:
        return dict(self.kept["history"]["messages"][self.last])

    def answered(self) -> str:
        until(lambda: self.message.get("done"))
        return str(self.message["content"])


@dataclass(frozen=True, slots=True)
class Room:
    """One that has kept nothing yet, and a server that neither has."""

    http: httpx.Client
    served: Served
    models: list[str] = field(default_factory=list)

    def chat(self) -> Chat:
        return Chat(self.http, self.models[0], "", "")

    def main(self) -> list[Asked]:
        """Prompts of chats, without its side calls."""
        return [asked for asked in self.served.asked if "### Task:" not in asked.text]


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + REPLY_S_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("Open WebUI did not get there")
        time.sleep(0.1)


def told(by: str, url: str, model: str) -> dict[str, str]:
    """The settings of a connection."""
    settings = CONNECTIONS[by].items()
    return {name: is_.replace("{url}", url).replace("{model}", model) for name, is_ in settings}


@contextmanager
def webui(model: Path, settings: Settings, by: str = "openai") -> Iterator[Room]:
    command, port = installed(), free_port()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        serve_scripted(model, settings, script) as served,
        open(Path(home) / "log", "w") as log,
    ):
        environment = SETTINGS | {"PATH": os.environ["PATH"], "HOME": home, "DATA_DIR": home}
        name = httpx.get(f"{served.url}/v1/models").json()["data"][0]["id"]
        environment |= told(by, served.url, name)
        words = [str(command), "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(words, stdout=log, stderr=log, env=environment, cwd=home)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=REPLY_S_MAX) as http:
                _until_up(http, process, Path(log.name))
                nobody = {"email": "", "password": ""}
                signed = http.post("/api/v1/auths/signin", json=nobody).raise_for_status().json()
                http.headers["Authorization"] = f"Bearer {signed['token']}"
                models = http.get("/api/models").raise_for_status().json()["data"]
                yield Room(http, served, [each["id"] for each in models])
        finally:
            process.terminate()
            process.wait(timeout=60)


def _until_up(http: httpx.Client, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if http.get("/health").status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"Open WebUI did not start: {log.read_text()[-2000:]}")


def converse(room: Room) -> None:
    """It gets through; its tool was run, and its side calls came back as what it asked for."""
    chat = room.chat().say(CHAT)
    assert ANSWER in chat.answered()
    until(lambda: chat.message.get("followUps"))
    assert chat.kept["title"] == "A greeting"
    chat = chat.say(AGAIN)
    assert ANSWER in chat.answered()
    assert RAN in chat.say(TOOL).answered()
    assert any("<tool_response>" in each.text for each in room.main())


def gives_way(room: Room) -> bool:
    """Whether its side calls let persons go first, and do not think."""
    side = [each for each in room.served.asked if each not in room.main()]
    return all(e.priority is Priority.AGENT and e.text.endswith(UNTHINKING) for e in side)


def interrupt(room: Room) -> int:
    """Tokens written of a reply that is stopped: its lane is not held for what nobody reads."""
    chat = room.chat().say(LONG)
    until(lambda: any(LONG in each.text and each.first_s for each in room.main()))
    chat.stop()
    asked = next(each for each in room.main() if LONG in each.text)
    until(lambda: asked.written is not None)
    assert asked.written
    return asked.written


def embed(room: Room) -> None:
    """What it is given to read is found again, by the server's vectors."""
    told = {"file": ("note.txt", "The key is under the mat.", "text/plain")}
    file = room.http.post("/api/v1/files/", files=told).raise_for_status().json()["id"]
    status = f"/api/v1/files/{file}/process/status"
    until(lambda: room.http.get(status).raise_for_status().json()["status"] == "completed")
    body = {"collection_names": [f"file-{file}"], "query": "Where is the key?", "k": 1}
    found = room.http.post("/api/v1/retrieval/query/collection", json=body).raise_for_status()
    assert found.json()["documents"] == [["The key is under the mat."]], found.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by", choices=CONNECTIONS, default="openai")
    by = parser.parse_args().by
    settings = settings_for()
    with webui(model_of(TINY, settings), settings, by) as room:
        converse(room)
        asked = list(room.main())
        prompts = [len(each.tokens) for each in asked]
        keep(
            "webui",
            by,
            app=WEBUI,
            prompts=prompts,
            side_prompts=[len(e.tokens) for e in room.served.asked if e not in asked],
            at_least_and_kept=at_least(asked),
            stopped_after=interrupt(room),
        )


if __name__ == "__main__":
    main()
