"""flm bench"""

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flm import console
from flm.cli import options
from flm.errors import BadSettings

if TYPE_CHECKING:
    from flm.core.event import Event
    from flm.engine.residency import Resident

Plan = Annotated[
    Path | None,
    typer.Option("--prompt", "-i", metavar="FILE", help="JSON: max_length, iterations, text"),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE.svg", help="draw what was measured as SVG, too"),
]
DECODE_TOKENS = 32
STORY = """The lighthouse keeper counted ships the way other people count sheep. On clear nights
there were forty or more, each a small moving lamp, and she gave every one of them a name and a
cargo. When fog came in from the north she lit the great lens, sat beside it with a pot of tea, and
wrote letters to captains she had never met. None of them ever answered, yet every spring somebody
left a sack of oranges on the steps below the tower. """


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Prompts of 1,024 tokens and each doubling up to `max_length`, `iterations` times each.

    FastFlowLM measures up to 32,768 eight times; a CPU would take hours for that.
    """

    max_length: int = 4096
    iterations: int = 3
    text: str = STORY

    def stages(self, context_length: int) -> list[int]:
        """Longest first, so that what does not fit fails first."""
        longest = min(self.max_length, context_length - DECODE_TOKENS)
        stages = [1024 * 2**power for power in range(12) if 1024 * 2**power <= longest]
        return stages[::-1] or [longest]


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds to the first token; tokens a second read and written."""

    ttft: float
    prefill: float
    decoding: float


def command(
    context: typer.Context,
    model: options.Model,
    plan: Plan = None,
    plot: Plot = None,
    ctx_len: options.CtxLen = None,
    prefill_chunk_len: options.PrefillChunkLen = None,
    device: options.Device = None,
    threads: options.Threads = None,
    kv_dtype: options.KvDtype = None,
    quiet: options.Quiet = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Measure how fast a model reads and writes on this machine. Writes a CSV file here.

    Prompts of 1,024, 2,048 and 4,096 tokens, three times each, unless -i FILE says otherwise.
    """
    settings = replace(options.settings_of(context), lanes=1, reuse_prompt=False)
    wanted = read_plan(plan)
    _refuse_other_pictures(plot)
    from flm.cli.resident import load_resident

    resident = load_resident(model, settings, say=console.debug)
    try:
        rows = []
        for length in wanted.stages(resident.context_length):
            tokens = prompt_tokens(resident, wanted.text, length)
            with console.progress(f"{length:,} tokens") as progress:
                runs = []
                for number in range(wanted.iterations):
                    runs.append(measure(resident, tokens))
                    progress((number + 1) / wanted.iterations)
            rows.append((length, runs))
        for line in table(rows):
            console.write(line + "\n")
        path = csv_path(resident.card.tag, resident.device.name)
        _write(path, _csv(rows))
        if plot:
            _write(plot, drawn(f"{resident.card.tag} on {resident.device.name}", rows))
    finally:
        resident.close()


def read_plan(path: Path | None) -> BenchPlan:
    if path is None:
        return BenchPlan()
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
        return BenchPlan(**{key: _checked(key, value) for key, value in given.items()})
    except (OSError, ValueError, AttributeError) as error:
        raise BadSettings(
            f"{path} is no plan for flm bench: {error}",
            fix='write {"max_length": 8192, "iterations": 5}, or a "text" too',
        ) from error


def _checked(key: str, value: Any) -> Any:
    kinds = {"max_length": int, "iterations": int, "text": str}
    known = key in kinds and type(value) is kinds[key]
    if not (known and value and (key == "text" or value >= 1)):
        raise ValueError(f"{key} cannot be {value!r}")
    return value


def prompt_tokens(resident: "Resident", text: str, length: int) -> tuple[int, ...]:
    """The text over and over, `length` tokens of it."""
    once = resident.tokenizer.encode(text)
    return tuple((once * (length // max(1, len(once)) + 1))[:length])


def measure(resident: "Resident", tokens: Sequence[int]) -> Measured:
    """One request on an idle engine, greedy. Raises DeviceFailed."""
    from flm.core.event import Failed, Finished
    from flm.core.request import Request, SamplingParams
    from flm.prefix.boundaries import text_prompt

    request = Request(
        id=f"bench-{time.monotonic_ns()}",
        prompt=text_prompt(list(tokens)),
        sampling=SamplingParams(temperature=0),
        max_tokens=DECODE_TOKENS,
        ignore_eos=True,
    )
    events: SimpleQueue[Event] = SimpleQueue()
    resident.thread.submit(request, events.put)
    while not isinstance(event := events.get(), Finished):
        if isinstance(event, Failed):
            raise event.error
    usage = event.usage
    return Measured(
        ttft=usage.queue_s + usage.prefill_s,
        prefill=usage.read_per_s,
        decoding=usage.written_per_s,
    )


def table(rows: Iterable[tuple[int, Sequence[Measured]]]) -> list[str]:
    heads = ("Context Length", "TTFT (s)", "Prefill Speed (tok/s)", "Decoding Speed (tok/s)")
    lines = [" | ".join(f"{head:>24}" for head in heads)]
    lines.append("-+-".join("-" * 24 for _ in heads))
    for length, runs in rows:
        cells = [f"{length:>24,}"]
        for name, digits in (("ttft", 3), ("prefill", 1), ("decoding", 1)):
            mean, deviation, _, _ = spread([getattr(run, name) for run in runs])
            cells.append(f"{mean:.{digits}f} ± {deviation:.{digits}f}".rjust(24))
        lines.append(" | ".join(cells))
    return lines


def spread(values: Sequence[float]) -> tuple[float, float, float, float]:
    """(mean, standard deviation, least, most)"""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return statistics.fmean(values), deviation, min(values), max(values)


def csv_path(tag: str, device: str) -> Path:
    name = tag.rpartition("/")[2].replace(":", "-")
    cpu = "_cpu" if device == "cpu" else ""
    return Path(f"bench_{name}_{time.strftime('%Y%m%d')}{cpu}.csv")


def drawn(title: str, rows: Iterable[tuple[int, Sequence[Measured]]]) -> str:
    """The table as a picture."""
    from flm.cli.plot import Line, picture

    ascending = sorted(rows, key=lambda row: row[0])
    lines = [
        Line(
            heading, colour, [spread([getattr(r, name) for r in runs])[:2] for _, runs in ascending]
        )
        for name, heading, colour in (
            ("ttft", "Time to first token, s", "#5a5fc7"),
            ("prefill", "Prefill speed, tok/s", "#c2741a"),
            ("decoding", "Decoding speed, tok/s", "#14796e"),
        )
    ]
    return picture(title, [length for length, _ in ascending], lines)


def _refuse_other_pictures(plot: Path | None) -> None:
    """Before minutes are spent on measuring."""
    if plot and plot.suffix.lower() != ".svg":
        raise BadSettings(
            f"--plot draws SVG, and {plot} is to be something else",
            fix=f"--plot {plot.with_suffix('.svg')}",
        )


def _csv(rows: Iterable[tuple[int, Sequence[Measured]]]) -> str:
    names = [field.name for field in fields(Measured)]
    heads = [f"{name}_{what}" for name in names for what in ("avg", "std", "min", "max")]
    lines = [",".join(["context_length", *heads])]
    for length, runs in rows:
        numbers = [n for name in names for n in spread([getattr(run, name) for run in runs])]
        lines.append(",".join([str(length), *(f"{number:.4f}" for number in numbers)]))
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        console.warn(f"{path} cannot be written: {error.strerror}")
    else:
        console.say(f"Written to {path}")
