"""What a model takes of the machine's memory, worked out before anything is allocated.

From what was compiled, or nearly so from a card: flm list does, so nothing heavy is imported.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from flm.core.picture import Sight
from flm.core.sizes import MIB, mib
from flm.errors import BadRequest, NoRoom
from flm.models.cards import Card, encoders
from flm.settings import NPUS, Settings

PREFIX_MB_USUAL = 4096
TRANSIT_BYTES = 256 * MIB  # of memory, on the way to a disk that keeps alone
# onnxruntime keeps the weights in its own order and lets go of most of the file: 1.1 to 1.35 of it
# measured, 1.55 while it loads, of which a tenth and more is the file's.
PREPACKED = 1.5
PASS_BYTES = 128 * MIB  # an encoder's own tensors
PROGRAM_BYTES = 256 * MIB  # Python, the server, a pass's own tensors
ROWS_SHARE_MAX = 4  # float32 rows may take this part of memory, by --kv-dtype auto
SPARE_SHARE = 16  # this part of memory is the system's, and what else runs
CTX_LEN_MIN = 512
CTX_LEN_STEP = 1024  # of what is advised
KV_DTYPES = {"f32": "float32", "f16": "float16"}
VALUE_BYTES = {"float32": 4, "float16": 2}
NPU_VALUE_BYTES = 2  # of rows, as its kernels have them
# Weights once more, in whole blocks of 128 rows by 256 columns, and the tensors that a chunk of a
# prompt has between kernels: SmolLM2-135M, the worst for its narrow rows, takes 1.54 of its file.
NPU_PACKED, NPU_BYTES = 1.125, 64 * MIB
# What a tower has while it is at work: one encodes ahead of prompts, and one may in a pass.
TOWERS_AT_WORK, FLOAT_BYTES = 2, 4
# Where only a card is here: those of the largest tower in the catalogue, and of Gemma's square.
PATCH_VALUES_USUAL, PATCHES_USUAL, TOKEN_PATCHES = 31_040, 4096, 4
NPU_TOKEN_BYTES = 4096  # of the angles of a position, which all lanes share


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be kept in memory, as asked for or else as the card says; `slots` None: no limit."""

    bytes: int
    slots: int | None
    transit: bool  # memory is only the way to the disk

    @classmethod
    def of(cls, settings: Settings, card: Card) -> "Limits":
        asked = (settings.prefix_cache_mb, card.prefix_cache_mb, PREFIX_MB_USUAL)
        size = next(mb for mb in asked if mb is not None) * MIB
        transit = size == 0 and settings.prefix_disk_mb > 0
        size = TRANSIT_BYTES if transit else size
        slots = settings.prefix_slots or card.prefix_slots
        return cls(size if settings.reuse_prompt else 0, slots, transit)


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes that a token adds to a lane, and that a lane takes besides."""

    row_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All in bytes. Rows are touched as they are used; the prefix cache fills up to its bound."""

    row_dtype: str
    context_length: int
    lanes: int
    weights: int
    lanes_rows: int
    lanes_state: int
    prefix: int
    prefix_wanted: int
    machine: int
    parked: int = 0
    pictures: int = 0  # what a model that sees keeps of them
    looking: int = 0  # what its tower has while it is at work
    twins: int = 0  # what an NPU has besides: weights as its kernels take them, rows, states
    beside: int = 0  # encoders, loaded or yet to be asked (--embed)
    program: int = PROGRAM_BYTES

    @property
    def needed(self) -> int:
        """Without what gives way: kept prompts, parked lanes."""
        lanes = self.lanes_rows + self.lanes_state
        own = self.program + self.weights + lanes + self.twins
        return own + self.pictures + self.looking + self.beside

    @property
    def gives_way(self) -> int:
        return self.prefix + self.parked

    @property
    def total(self) -> int:
        return self.needed + self.gives_way

    @property
    def left(self) -> int:
        """For what gives way, beside the system; less than none where it is too tight."""
        return self.machine - self.machine // SPARE_SHARE - self.needed

    @property
    def fits(self) -> bool:
        return self.left >= 0

    def lines(self) -> list[str]:
        kv = "f32" if self.row_dtype == "float32" else "f16"
        lanes = f"{self.lanes} lanes of {self.context_length:,} tokens ({kv} KV cache)"
        lines = [
            f"Memory: weights {mib(self.weights)}, {lanes} up to "
            f"{mib(self.lanes_rows + self.lanes_state)}, prefix cache up to {mib(self.prefix)}, "
            f"parked lanes up to {mib(self.parked)}, in all {mib(self.total)} of "
            f"{mib(self.machine)}"
        ]
        if self.pictures:
            lines.append(
                f"Images, and what they were made into, are up to {mib(self.pictures)} of that"
            )
        if self.looking:
            lines.append(f"Looking at images takes up to {mib(self.looking)} of that meanwhile")
        if self.beside:
            lines.append(f"What makes embeddings is {mib(self.beside)} of that")
        if self.twins:
            lines.append(f"The NPU's own weights, rows and states are {mib(self.twins)} of that")
        if self.prefix < self.prefix_wanted:
            lines.append(
                f"The prefix cache gets {mib(self.prefix)} of the {mib(self.prefix_wanted)} "
                f"wanted: 1/{SPARE_SHARE} of the machine is left to what else runs"
            )
        return lines


def context_length_of(model_max: int, default: int, wanted: int | None) -> int:
    """Tokens a sequence may have. Raises BadRequest past what the model was made for."""
    if wanted is None:
        return min(default, model_max)
    if wanted > model_max:
        raise BadRequest(
            f"--ctx-len {wanted:,} is more than the model's {model_max:,} tokens",
            fix=f"start with --ctx-len {model_max} or less, or take a model that goes further: "
            f"flm list --ctx-len {wanted}",
            param="ctx-len",
        )
    return max(wanted, min(CTX_LEN_MIN, model_max))


def no_longer_than(settings: Settings, length_max: int) -> Settings:
    """With a --ctx-len that was asked for with another model in mind cut to what this one takes."""
    if settings.ctx_len is None:
        return settings
    return replace(settings, ctx_len=min(settings.ctx_len, length_max))


def plan_memory(
    carried: Mapping[str, Carried],
    *,
    file_bytes: int,
    context_length: int,
    lanes: int,
    kv_dtype: str,
    prefix_bytes: int,
    parked_bytes: int,
    machine_bytes: int,
    pictures_bytes: int = 0,
    looking_bytes: int = 0,
    beside_bytes: int = 0,
    on_npu: bool = False,
) -> MemoryPlan:
    """The plan, with the prefix cache cut to what is left, and parked lanes to what it leaves, or
    to as much as the lanes have; `file_bytes` are the compiled weights', `beside_bytes` what
    encoders take.

    `kv_dtype` is f32, f16 or auto: f32 while all lanes' rows fit in a quarter of memory.
    """
    rows = {dtype: lanes * context_length * each.row_bytes for dtype, each in carried.items()}
    if kv_dtype == "auto":
        fits = rows["float32"] * ROWS_SHARE_MAX <= machine_bytes
        row_dtype = "float32" if fits else "float16"
    else:
        row_dtype = KV_DTYPES[kv_dtype]
    plan = MemoryPlan(
        row_dtype=row_dtype,
        context_length=context_length,
        lanes=lanes,
        weights=round(PREPACKED * file_bytes),
        lanes_rows=rows[row_dtype],
        lanes_state=lanes * carried[row_dtype].state_bytes,
        prefix=0,
        prefix_wanted=prefix_bytes,
        machine=machine_bytes,
        pictures=pictures_bytes,
        looking=looking_bytes,
        beside=beside_bytes,
    )
    if on_npu:
        rows_again = plan.lanes_rows * NPU_VALUE_BYTES // VALUE_BYTES[row_dtype]
        weights_again = (
            round(NPU_PACKED * file_bytes) + NPU_BYTES + context_length * NPU_TOKEN_BYTES
        )
        plan = replace(plan, twins=weights_again + rows_again + plan.lanes_state)
    prefix = max(0, min(prefix_bytes, plan.left))
    lanes_bytes = plan.lanes_rows + plan.lanes_state
    parked = max(0, min(parked_bytes, lanes_bytes, plan.left - prefix))
    return replace(plan, prefix=prefix, parked=parked)


def require_room(plan: MemoryPlan) -> None:
    """Raises NoRoom with what would make it fit. What is tight is not refused."""
    if plan.needed > plan.machine:
        raise NoRoom(
            f"the model with {plan.lanes} lanes of {plan.context_length:,} tokens needs "
            f"{mib(plan.needed)}, this machine has {mib(plan.machine)}",
            fix=_advice(plan),
        )


def require_room_beside(
    tag: str, file_bytes: int, taken: int, machine: int, *, say: Callable[[str], None]
) -> int:
    """Bytes that an encoder takes beside a model whose plan has taken so many. Raises NoRoom."""
    needed = encoder_bytes(file_bytes)
    if taken + needed > machine - machine // SPARE_SHARE:
        raise NoRoom(
            f"{tag} needs {mib(needed)} beside the {mib(taken)} that are planned already, this "
            f"machine has {mib(machine)}",
            fix="start with --embed 1, which plans for it, or with a smaller --prefix-cache-mb or "
            "--ctx-len",
        )
    say(f"Memory: {tag} {mib(needed)} beside {mib(taken)}, of {mib(machine)}")
    return needed


def encoder_bytes(file_bytes: int) -> int:
    """What an encoder takes: its weights, and what its passes have between them."""
    return round(PREPACKED * file_bytes) + PASS_BYTES


def beside_bytes(settings: Settings, loaded: Mapping[str, int]) -> int:
    """What encoders take of what a model that chats may have: those that are loaded, by tag, and
    the one that --embed says will be.
    """
    wanted = [card for card in encoders()[:1] if settings.embed and card.tag not in loaded]
    return sum(loaded.values()) + sum(encoder_bytes(card.compiled_bytes) for card in wanted)


def pictures_bytes(settings: Settings) -> int:
    """What a model that sees keeps of pictures: decoded, and as rows."""
    return (settings.image_decoded_mb + settings.image_cache_mb) * MIB


def looking_bytes(sight: Sight, settings: Settings) -> int:
    """What its tower has while it is at work on the largest picture."""
    pixels = min(sight.pixels_max, settings.image_max_tokens * sight.cell**2)
    patches = pixels // sight.patch**2
    return TOWERS_AT_WORK * patches * sight.patch_values * FLOAT_BYTES


def _looking_bytes_usual(settings: Settings) -> int:
    """The same where its tower is not known: more than most take."""
    patches = max(PATCHES_USUAL, TOKEN_PATCHES * settings.image_max_tokens)
    return TOWERS_AT_WORK * patches * PATCH_VALUES_USUAL * FLOAT_BYTES


def estimate(card: Card, settings: Settings, machine_bytes: int) -> MemoryPlan:
    """What loading it will plan, by its card alone: nothing need be here yet."""
    assert card.row_values is not None, card.tag
    if card.embeds:
        return _encoder_plan(card, machine_bytes)
    wanted = no_longer_than(settings, card.context_length_max).ctx_len
    sees = card.sees and settings.device not in NPUS
    return plan_memory(
        {
            dtype: Carried(card.row_values * size, card.state_bytes)
            for dtype, size in VALUE_BYTES.items()
        },
        file_bytes=card.compiled_bytes,
        context_length=context_length_of(card.context_length_max, card.context_length, wanted),
        lanes=settings.lanes,
        kv_dtype=settings.kv_dtype,
        prefix_bytes=Limits.of(settings, card).bytes,
        machine_bytes=machine_bytes,
        parked_bytes=settings.parked_mb * MIB,
        pictures_bytes=pictures_bytes(settings) if sees else 0,
        looking_bytes=_looking_bytes_usual(settings) if sees else 0,
        beside_bytes=beside_bytes(settings, {}),
        on_npu=settings.device in NPUS,
    )


def _encoder_plan(card: Card, machine_bytes: int) -> MemoryPlan:
    """It is loaded beside what chats, in the same program, and keeps nothing."""
    weights = round(PREPACKED * card.compiled_bytes)
    context_length = min(card.context_length, card.context_length_max)
    return MemoryPlan(
        row_dtype="float32",
        context_length=context_length,
        lanes=0,
        weights=weights,
        lanes_rows=0,
        lanes_state=0,
        prefix=0,
        prefix_wanted=0,
        machine=machine_bytes,
        program=PASS_BYTES,
    )


def context_length_that_fits(card: Card, settings: Settings, machine_bytes: int) -> int | None:
    """The longest below what was asked for, in whole 1,024s or else the least; None: not that."""
    length = estimate(card, settings, machine_bytes).context_length
    shorter = range((length - 1) // CTX_LEN_STEP * CTX_LEN_STEP, 0, -CTX_LEN_STEP)
    for each in chain(shorter, (CTX_LEN_MIN,)):
        if estimate(card, replace(settings, ctx_len=each), machine_bytes).fits:
            return each
    return None


def _advice(plan: MemoryPlan) -> str:
    left = plan.machine - (plan.needed - plan.lanes_rows)
    if left <= 0:
        return "take a smaller model"
    advice = []
    if plan.row_dtype == "float32":
        advice.append("--kv-dtype f16")
    if plan.lanes > 1:
        advice.append(f"--lanes {max(1, plan.lanes * left // plan.lanes_rows)}")
    return " or ".join([*advice, "a smaller --ctx-len"])
