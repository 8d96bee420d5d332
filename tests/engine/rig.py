"""An engine over the null device, with the real cache and tokenizer, and a clock of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flm.core.alike import common_length
from flm.core.event import Admitted, Event, Failed, Finished, Generated
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.core.request import Priority, Request, SamplingParams
from flm.core.step import Step
from flm.core.tensor import MemoryKind
from flm.devices.device import Array, Device
from flm.devices.null import NullDevice, nothing, write_model
from flm.engine.engine import Engine
from flm.engine.sampler import Sample, Sampler
from flm.errors import DeviceLost
from flm.memory.lanes import Lanes
from flm.memory.layout import MemoryLayout, MemoryTensor
from flm.memory.parked import Parked
from flm.prefix.cache import PrefixCache
from flm.prefix.disk.tier import DiskTier
from flm.prefix.trie import TOKEN_BYTES
from flm.runner.encodings import Encodings
from flm.runner.eyes import Eyes
from flm.runner.runner import Runner
from flm.text.tokenizer import Tokenizer

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
TOKENIZER = Tokenizer.load(FIXTURES / "tokenizer")
VOCABULARY = TOKENIZER.vocabulary

KEYS = MemoryTensor("keys", MemoryKind.ROWS, (2, 4))
VALUES = MemoryTensor("values", MemoryKind.ROWS, (2, 4), "float16")
STATE = MemoryTensor("conv", MemoryKind.STATE, (3, 5))
STATELESS, STATEFUL = MemoryLayout((KEYS, VALUES)), MemoryLayout((KEYS, VALUES, STATE))
GREEDY = SamplingParams(temperature=0)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Recorder(Runner):
    """A runner that notes its steps; a token takes it a millisecond, a decode step ten."""

    def __init__(self, *parts: Any, vocabulary: int, eyes: Eyes | None = None) -> None:
        super().__init__(*parts, vocabulary=vocabulary, eyes=eyes)
        self.device: Device = parts[1]
        self.clock = Clock()
        self.steps: list[Step] = []
        self.spoil: set[int] = set()  # lanes whose logits are not numbers
        self.after: Callable[[Step], None] = lambda step: None  # what a pass has gone through

    def run(self, step: Step) -> dict[int, Array]:
        self.steps.append(step)
        self.clock.now += len(step.spans[0].tokens) / 1000 if step.prefill else 0.01
        logits = super().run(step)
        self.after(step)
        return {
            lane: np.full_like(row, np.nan) if lane in self.spoil else row
            for lane, row in logits.items()
        }


def write_null_model(folder: Path, layout: MemoryLayout, *, sees: int = 0) -> Path:
    listed = [(t.name, t.kind, t.shape, t.dtype) for t in layout.tensors]
    return write_model(folder / "null.json", listed, vocabulary=VOCABULARY, sees=sees)


def null_runner(
    folder: Path,
    layout: MemoryLayout,
    *,
    lanes: int = 2,
    capacity_max: int = 256,
    capacity_start: int = 16,
    during: Callable[[], None] = nothing,
    syncing: Callable[[], None] = nothing,
    eyes: Eyes | None = None,
) -> tuple[Recorder, Lanes]:
    device = NullDevice(during, syncing)
    sees = eyes.width if eyes else 0
    program = device.load(write_null_model(folder, layout, sees=sees))
    room = Lanes(
        device, layout, count=lanes, capacity_max=capacity_max, capacity_start=capacity_start
    )
    return Recorder(program, device, layout, room, vocabulary=VOCABULARY, eyes=eyes), room


MakeRunner = Callable[..., tuple[Recorder, Lanes]]


class Rig:
    def __init__(
        self,
        folder: Path,
        *,
        layout: MemoryLayout = STATELESS,
        lanes: int = 2,
        capacity_max: int = 256,
        queue_max: int = 8,
        chunk_len_max: int = 16,
        cache_bytes: int = 2**20,
        slots_max: int | None = None,
        gain_min: int = 1,
        ghosts_bytes: int = 0,
        audit_every: int = 0,
        sampler_for: Callable[[Request], Sample] = Sampler,
        during: Callable[[], None] = nothing,
        make_runner: MakeRunner = null_runner,
        disk: DiskTier | None = None,
        parked_rows: int = 0,
        parked_disk_rows: int = 0,
        window_rows: int = 5,
        encodings: Encodings | None = None,
    ) -> None:
        self.uses_left: int | None = None  # of the device, till it is lost
        self._during = during
        self.runner, self.lanes = make_runner(
            folder,
            layout,
            lanes=lanes,
            capacity_max=capacity_max,
            during=self._pass,
            syncing=self._use,
        )
        self.log: list[str] = []
        self.cache = PrefixCache(
            bytes_max=cache_bytes,
            slots_max=slots_max,
            gain_min=gain_min,
            ghosts_max=ghosts_bytes,
            row_bytes=layout.row_bytes,
            state_bytes=layout.state_bytes,
            log=self.log.append,
            warn=self.log.append,
            read_min=layout.read_min,
            first_min=layout.first_min,
            grid=self.runner.grid,
            disk=disk,
        )
        self.parked = Parked(
            layout,
            host_max=parked_rows * layout.row_bytes,
            disk_max=parked_disk_rows * layout.row_bytes,
            folder=folder / "parked",
            warn=self.log.append,
        )
        self.parked.window_rows = window_rows
        self.engine = Engine(
            self.runner,
            self.cache,
            TOKENIZER,
            lanes=self.lanes,
            context_length=256,
            queue_max=queue_max,
            chunk_len_max=chunk_len_max,
            chunk_s_target=0.25,
            clock=self.runner.clock,
            sampler_for=sampler_for,
            audit_every=audit_every,
            parked=self.parked,
            encodings=encodings,
        )
        self.events: list[Event] = []
        self.read: list[bytes] = []  # beginnings of prompts that passes went through, packed
        self.runner.after = self._note_read

    @property
    def steps(self) -> list[Step]:
        return self.runner.steps

    def _pass(self) -> None:
        self._during()
        self._use()

    def _use(self) -> None:
        if self.uses_left == 0:
            self.uses_left = None
            assert isinstance(self.runner.device, NullDevice)
            self.runner.device.lose()
            raise DeviceLost("told to", fix="none")
        if self.uses_left is not None:
            self.uses_left -= 1

    def _note_read(self, step: Step) -> None:
        sequences = {each.lane: each.sequence for each in self.engine._active.values()}
        for span in step.spans if sequences else ():  # a runner may be driven without an engine
            sequence = sequences[span.lane]
            assert tuple(sequence.tokens[span.start : span.end]) == span.tokens
            read = sequence.request.prompt.packed[: span.end * TOKEN_BYTES]
            self.read = [each for each in self.read if not read.startswith(each)] + [read]

    def read_of(self, prompt: Prompt) -> int:
        """How many of its tokens were read, for it or for others."""
        alike = (common_length(prompt.packed, other) for other in self.read)
        return max(alike, default=0) // TOKEN_BYTES

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.events += self.engine.step()
            self.engine.check()

    def until(self, done: Callable[[], object], *, steps_max: int = 1000) -> None:
        for _ in range(steps_max):
            if done():
                return
            self.step()
        raise AssertionError(f"not within {steps_max} steps; {self.events[-3:]}")

    def run(self, *requests: Request) -> None:
        """Submit, and step until nothing is left to do."""
        for request in requests:
            self.engine.submit(request)
        self.until(lambda: not self.engine.busy)

    def of(self, request_id: str) -> list[Event]:
        return [event for event in self.events if event.request_id == request_id]

    def tokens(self, request_id: str) -> list[int]:
        return [event.token for event in self.of(request_id) if isinstance(event, Generated)]

    def text(self, request_id: str) -> str:
        """All that a client was shown."""
        shown = (event for event in self.of(request_id) if isinstance(event, Generated | Finished))
        return "".join(event.text for event in shown)

    def admitted(self, request_id: str) -> Admitted:
        return next(event for event in self.of(request_id) if isinstance(event, Admitted))

    def ending(self, request_id: str) -> Finished | Failed:
        """The one last event, behind which there is no other."""
        *before, last = self.of(request_id)
        assert isinstance(last, Finished | Failed), last
        assert not any(isinstance(event, Finished | Failed) for event in before)
        return last

    def finished(self, request_id: str) -> Finished:
        ending = self.ending(request_id)
        assert isinstance(ending, Finished), ending
        return ending


def prompt_of(*segments: Sequence[int], ends: bool = True) -> Prompt:
    """A boundary after each segment: a head, turns, and the end if wanted."""
    tokens: list[int] = []
    boundaries = []
    for index, segment in enumerate(segments):
        tokens += segment
        last = index == len(segments) - 1
        kind = BoundaryKind.END if last else BoundaryKind.TURN if index else BoundaryKind.HEAD
        if ends or not last:
            boundaries.append(Boundary(len(tokens), kind))
    return Prompt(tuple(tokens), tuple(boundaries))


def some_tokens(seed: int, count: int) -> tuple[int, ...]:
    """Ordinary tokens, none of them special."""
    return tuple(np.random.default_rng(seed).integers(17, VOCABULARY, count).tolist())


HEAD, TURN, TAIL = some_tokens(1, 40), some_tokens(2, 30), some_tokens(3, 20)
CONVERSATION = prompt_of(HEAD, TURN, TAIL)
layouts = pytest.mark.parametrize("layout", [STATELESS, STATEFUL], ids=["rows", "state"])


def request_of(
    request_id: str,
    prompt: Prompt | Sequence[int],
    *,
    max_tokens: int = 4,
    sampling: SamplingParams = GREEDY,
    stop: tuple[str, ...] = (),
    ignore_eos: bool = True,
    priority: Priority = Priority.INTERACTIVE,
    owner: str = "",
) -> Request:
    prompt = prompt if isinstance(prompt, Prompt) else prompt_of(prompt)
    return Request(
        request_id, prompt, sampling, max_tokens, stop, ignore_eos, priority, owner=owner
    )


def forced(**replies: Sequence[int]) -> Callable[[Request], Sample]:
    """Samplers that say what a test wants said, by request id."""

    def sampler_for(request: Request) -> Sample:
        start, reply = len(request.prompt.tokens), replies[request.id]
        return lambda tokens, logits: reply[len(tokens) - start]

    return sampler_for
