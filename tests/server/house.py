"""A whole server to test against: the real engine and prefix cache over the null device.

What a model says is scripted where a test cares: `house.say("...")` forces the tokens of the next
request through its sampler. Everything else is the product.
"""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import httpx

from flm.core.request import Priority, Request, SamplingParams
from flm.core.step import Step
from flm.core.tensor import MemoryKind
from flm.devices.device import Array, Device
from flm.devices.null import NullDevice, write_model
from flm.engine.engine import Engine
from flm.engine.plan import MemoryPlan
from flm.engine.residency import Resident
from flm.engine.sampler import Sample, Sampler
from flm.engine.thread import EngineThread
from flm.graph.bundle import Bundle
from flm.memory.lanes import Lanes
from flm.memory.layout import MemoryLayout, MemoryTensor
from flm.memory.parked import Parked
from flm.models.cards import Card
from flm.prefix.boundaries import BoundaryFinder
from flm.prefix.cache import PrefixCache
from flm.prefix.disk.tier import DiskTier
from flm.prefix.encoder import CHARS_MAX
from flm.runner.runner import Runner
from flm.server.app import create_app
from flm.server.residence.residence import Residence
from flm.server.serve import create_server, listen
from flm.settings import Settings
from flm.text.grammar import Grammars
from flm.text.template import ChatTemplate
from flm.text.tokenizer import Tokenizer

TOKENIZER = Path(__file__).parents[1] / "fixtures" / "tokenizer"
CONTEXT_LENGTH = 512
GOES_ON = -1  # after the last of a script's tokens
SETTINGS = Settings(api_keys=(), lanes=2, queue_max=4, ping_interval_s=0.1, read_ahead=False)

# ChatML with tools, and a thought that the prompt opens when asked for one.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }} {{ call.function.arguments }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking %}<think>
{% endif %}{% endif %}"""

KEYS = MemoryTensor("keys", MemoryKind.ROWS, (2, 4))
LAYOUT = MemoryLayout((KEYS,))
STATEFUL = MemoryLayout((KEYS, MemoryTensor("conv", MemoryKind.STATE, (3, 5))))
CARD = Card(
    tag="tiny:1m",
    name="Tiny-1M",
    family="null",
    url="",
    sources=(),
    context_length=CONTEXT_LENGTH,
    context_length_max=CONTEXT_LENGTH,
    parameters=1_000_000,
    parameter_size="1M",
    quantization="none",
    footprint_gb=0.001,
    aliases=("teeny",),
    sampling=SamplingParams(temperature=0.0),
)


class Reader(Runner):
    """Counts what it reads of prompts, in tokens."""

    tokens_read = 0

    def run(self, step: Step) -> dict[int, Array]:
        if step.prefill:
            self.tokens_read += len(step.spans[0].tokens)
        return super().run(step)


@dataclass
class House:
    """`requests` are those the engine was given, in order of their admission. `log` and `warnings`
    are what the prefix cache said.
    """

    residence: Residence
    tokenizer: Tokenizer
    device: Device
    runner: Reader
    requests: list[Request] = field(default_factory=list)
    scripts: deque[list[int]] = field(default_factory=deque)
    log: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    url: str = ""  # of the real server that all tests share, while this is its house
    _during: Callable[[], None] = lambda: None

    @property
    def resident(self) -> Resident:
        return self.residence.resident

    def say(self, *texts: str, end: bool = True) -> None:
        """What the next requests say, one text each; without `end` it never stops by itself."""
        for text in texts:
            tokens = self.tokenizer.encode(text)
            self.scripts.append([*tokens, min(self.tokenizer.eos_ids)] if end else tokens)

    def begin(self, text: str) -> None:
        """What the next request begins to say; how it goes on is its sampler's choice."""
        self.scripts.append([*self.tokenizer.encode(text), GOES_ON])

    def during_passes(self, hook: Callable[[], None]) -> None:
        """Called in the middle of every pass, on the engine's thread."""
        self._during = hook

    def sampler_for(self, request: Request) -> Sample:
        self.requests.append(request)
        if not self.scripts or request.priority is Priority.IDLE:
            return Sampler(request)
        script, start = self.scripts.popleft(), len(request.prompt.tokens)
        sampler = Sampler(request)

        def forced(tokens: Sequence[int], logits: Array) -> int:
            place = len(tokens) - start
            if script[-1] == GOES_ON and place >= len(script) - 1:
                return sampler(tokens, logits)
            return script[place % len(script)]

        return forced

    def prompt_text(self, index: int = -1) -> str:
        """What a request was rendered to."""
        return self.tokenizer.decode(self.requests[index].prompt.tokens, skip_special=False)


@cache
def read_text(template: str = TEMPLATE) -> tuple[Tokenizer, ChatTemplate]:
    tokenizer = Tokenizer.load(TOKENIZER)
    tokens = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
    return tokenizer, ChatTemplate(template, **tokens)


@contextmanager
def open_house(
    folder: Path,
    settings: Settings = SETTINGS,
    *,
    context_length: int = CONTEXT_LENGTH,
    layout: MemoryLayout = LAYOUT,
    template: str = TEMPLATE,
    cache_bytes: int = 2**20,
    chunk_len_max: int = 64,
    disk: DiskTier | None = None,
    device: Device | None = None,
    parked_bytes: int = 0,
    chars_max: int = CHARS_MAX,
) -> Iterator[House]:
    """`device`: one of its own that loads the null device's models; it does not call hooks."""
    tokenizer, chat_template = read_text(template)
    device = device or NullDevice(during=lambda: house._during())
    lanes = Lanes(device, layout, count=settings.lanes, capacity_max=context_length + 1)
    memory = [(t.name, t.kind, t.shape, t.dtype) for t in layout.tensors]
    graph = write_model(folder / "model.json", memory, vocabulary=tokenizer.vocabulary)
    runner = Reader(device.load(graph), device, layout, lanes, vocabulary=tokenizer.vocabulary)
    house = House(Residence(), tokenizer, device, runner)
    cache = PrefixCache(
        bytes_max=cache_bytes,
        slots_max=None,
        gain_min=settings.prefix_min_gain,
        row_bytes=layout.row_bytes,
        state_bytes=layout.state_bytes,
        log=house.log.append,
        warn=house.warnings.append,
        read_min=layout.read_min,
        first_min=layout.first_min,
        ghosts_max=2**20,
        disk=disk,
    )
    engine = Engine(
        runner,
        cache,
        tokenizer,
        lanes=lanes,
        context_length=context_length,
        queue_max=settings.queue_max,
        chunk_len_max=chunk_len_max,
        chunk_s_target=0.25,
        clock=time.monotonic,
        sampler_for=house.sampler_for,
        audit_every=settings.reuse_audit,
        parked=Parked(layout, host_max=parked_bytes),
    )
    layouts = {"float32": layout}
    house.residence.settle(
        Resident(
            card=replace(CARD, context_length=context_length),
            bundle=Bundle(
                folder, "0123456789abcdef", "null", "null", layouts, tokenizer.vocabulary, 512
            ),
            plan=MemoryPlan("float32", context_length, settings.lanes, 0, 0, 0, 0, 0, 0),
            tokenizer=tokenizer,
            template=chat_template,
            boundaries=BoundaryFinder(chat_template, tokenizer, chars_max=chars_max),
            grammars=Grammars(tokenizer),
            thread=EngineThread(engine),
            device=device,
            reuse=settings.reuse_prompt,
            read_ahead=settings.read_ahead,
        )
    )
    try:
        yield house
    finally:
        house.during_passes(lambda: None)
        house.resident.close()
        engine.check()


@contextmanager
def serving(
    residence: Residence,
    settings: Settings = SETTINGS,
    *,
    buffer_bytes: int | None = None,
    port: int = 0,
) -> Iterator[str]:
    """The address of a real server on this machine, on a free port unless `port` names one.

    `buffer_bytes`: how much the system takes for a client that does not read.
    """
    server = create_server(create_app(settings, residence), settings)
    with listen("127.0.0.1", port) as listener:
        if buffer_bytes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


def in_process(house: House, settings: Settings = SETTINGS) -> httpx.AsyncClient:
    """A client of the app without a socket."""
    transport = httpx.ASGITransport(create_app(settings, house.residence))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")
