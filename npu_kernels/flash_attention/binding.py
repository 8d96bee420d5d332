"""Attention and PackedAttention of many tokens: rotary puts their rows where they go, then some
tokens at a time attend.
"""

from pathlib import Path

from npu_kernels.attention.binding import angles_of, shape_of, together
from npu_kernels.attention.reference import TOKENS
from npu_kernels.bf16 import bits_of
from npu_kernels.binding import Binding, Node, Operand, Rows
from npu_kernels.flash_attention.design import CORES
from npu_kernels.manifest import DATA_BYTES_MAX, manifest

EIGHT = 8  # rows of queries that a kernel takes at a time
AT_ONCE = (32, 16, 8)  # tokens
FOLDER = Path(__file__).parent


def bind(node: Node) -> tuple[Binding, ...]:
    tokens, shape = node.tokens, shape_of(node)
    if node.attributes["window"] != -1:
        return ()
    if not shape or tokens % TOKENS:
        return ()
    some = next((count for count in AT_ONCE if tokens % count == 0 and _fits(shape, count)), 0)
    if not some or _lines_bytes(shape) > DATA_BYTES_MAX:
        return ()
    rows = Rows(("past_key", "past_value"))
    wide = shape["HEADS"] * shape["W"]
    return (
        _rotary(node, shape, rows),
        *(
            Binding(
                "flash_attention",
                "flash_attention",
                {
                    **{name: shape[name] for name in ("HEADS", "KV_HEADS", "W", "C")},
                    "T": some,
                    "SCALE": bits_of(node.attributes["scale"]),
                },
                {
                    "query": Operand("turned", 4 * wide * start),
                    "rows": rows,
                    "y": Operand("y", 4 * wide * start),
                },
                {
                    "position": f"offset + {start}",
                    "blocks": f"(offset + {start + some + TOKENS - 1}) // {TOKENS}",
                },
            )
            for start in range(0, tokens, some)
        ),
    )


def _rotary(node: Node, shape: dict[str, int], rows: Rows) -> Binding:
    width, room = shape["W"], shape["C"]
    line = width * -(-2 * shape["R"] // width)
    return Binding(
        "rotary",
        "rotary",
        shape | {"T": node.tokens},
        {
            "qkv": together(node, shape["HEADS"] * width, shape["KV_HEADS"] * width),
            "angles": angles_of(node, room, line),
            "rows": rows,
            "query": Operand("turned"),
        },
        {"position": "offset", "block": f"offset // {TOKENS}", "first": "first"},
    )


def _fits(shape: dict[str, int], tokens: int) -> bool:
    """Whether a core holds its quarter of so many tokens."""
    heads = shape["HEADS"] // shape["KV_HEADS"]
    rows, left = divmod(tokens * heads, CORES)
    if left or rows % EIGHT:
        return False
    known = {"W": shape["W"], "ROWS": rows}
    start, attend, finish = manifest(FOLDER).kernels
    held = attend.data_bytes(known) + start.bytes_of("query", known) + finish.bytes_of("y", known)
    return held <= DATA_BYTES_MAX


def _lines_bytes(shape: dict[str, int]) -> int:
    """What rotary's core holds."""
    hold, turn, append = manifest(FOLDER.parent / "rotary").kernels
    return append.data_bytes(shape) + hold.bytes_of("angles", shape) + 2 * turn.bytes_of("y", shape)
