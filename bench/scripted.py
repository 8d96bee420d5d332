"""A real server whose model says what a script has it say: for agents that must get somewhere.

Model, engine, prefix cache and HTTP are those of `flm serve`. Only which token comes next is the
script's choice, since nothing that weights of noise would say is a call of a tool.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

from bench.servers import free_port
from flm.core.event import Event, Finished
from flm.core.request import Priority, Request
from flm.devices.device import Array
from flm.engine import residency
from flm.engine.engine import Engine
from flm.engine.sampler import Sample, Sampler
from flm.hub.prepare import prepare_model
from flm.server.app import create_app
from flm.server.residence.residence import Residence
from flm.server.serve import create_server, listen
from flm.settings import Settings

Script = Callable[[str], str]  # from a prompt as it was rendered to what the model says


@dataclass
class Asked:
    """A prompt that came into a lane."""

    id: str
    tokens: tuple[int, ...]
    cuts: tuple[int, ...]  # where others may go on from it
    text: str
    at: float  # monotonic
    priority: Priority
    cached: int = 0  # tokens that were not read for it
    first_s: float = 0.0  # from there to its first token
    written: int | None = None  # tokens, once its reply has ended


@dataclass
class Served:
    """`asked` in order of admission, idle work left out."""

    url: str
    asked: list[Asked] = field(default_factory=list)

    def note(self, events: Sequence[Event]) -> None:
        ended = {each.request_id: each.usage for each in events if isinstance(each, Finished)}
        for asked in self.asked:
            if usage := ended.get(asked.id):
                asked.cached = usage.cached_tokens
                asked.written = usage.completion_tokens


@contextmanager
def serve_scripted(model: Path, settings: Settings, script: Script) -> Iterator[Served]:
    served = Served("")

    def sampler_for(request: Request) -> Sample:
        if request.priority is Priority.IDLE:
            return Sampler(request)
        text = tokenizer.decode(request.prompt.tokens, skip_special=False)
        words = [*tokenizer.encode(script(text)), min(tokenizer.eos_ids)]
        prompt = request.prompt
        cuts = tuple(boundary.offset for boundary in prompt.boundaries)
        at = time.monotonic()
        asked = Asked(request.id, prompt.tokens, cuts, text, at, request.priority)
        served.asked.append(asked)
        start = len(request.prompt.tokens)

        def forced(tokens: Sequence[int], logits: Array) -> int:
            asked.first_s = asked.first_s or time.monotonic() - asked.at
            return words[min(len(tokens) - start, len(words) - 1)]

        return forced

    class Watched(Engine):
        def step(self) -> list[Event]:
            events = super().step()
            served.note(events)
            return events

    bundle, card = prepare_model(str(model), settings)
    with patch.object(residency, "Engine", partial(Watched, sampler_for=sampler_for)):
        resident = residency.load(bundle, card, settings)
    tokenizer = resident.tokenizer
    residence = Residence(settings)
    residence.settle(resident)
    port = free_port()
    server = create_server(create_app(settings, residence), settings)
    with listen("127.0.0.1", port) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            served.url = f"http://127.0.0.1:{port}"
            yield served
        finally:
            server.should_exit = server.force_exit = True
            thread.join()
            resident.close()
