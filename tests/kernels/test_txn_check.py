"""The rules of a stream: one stream that keeps them all, and for each rule one that breaks it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_kernels.txn import (
    NPU1,
    NPU2,
    Await,
    BlockWrite,
    Operation,
    Patch,
    StreamFault,
    Write,
    check,
    check_words,
    encode,
    findings,
)
from npu_kernels.txn.descriptors import Descriptor, Dim
from npu_kernels.txn.geometry import Place
from tests.kernels.txn_streams import (
    DRAINED,
    FILLED,
    copy,
    described,
    descriptor,
    drain,
    fill,
    started,
)

SIZES = (4096, 4096)


def starts(count: int) -> list[Operation]:
    return [operation for number in range(count) for operation in drain(number, 1, 64)]


def one(what: Descriptor, repeats: int = 1, offset: int = 0) -> list[Operation]:
    """A fill as described."""
    return [*described(0, what, 0, offset), *started(0, fills=True, repeats=repeats), FILLED]


def sixth(offset: int) -> list[Operation]:
    return [*described(0, Descriptor(64), 5, offset), *started(0, fills=True), FILLED]


BROKEN: list[tuple[str, list[Operation]]] = [
    ("tile", [Write(Place(8, 0, 0x1D204).address, 0)]),
    ("tile", [Await(7, 0, False, 0, columns=2)]),
    ("await", [Await(0, 2, False, 0)]),
    ("patch", [Patch(descriptor(0), 0, 0)]),
    ("queue", [Write(Place(0, 0, 0x1D204).address, 0x100)]),
    ("descriptor-invalid", started(3, fills=True)),
    ("descriptor-invalid", [*one(Descriptor(64, valid=False))]),
    ("unpatched", [BlockWrite(descriptor(0), Descriptor(64).words()), *started(0, fills=True)]),
    (
        "unpatched",  # the address is lost when the descriptor is written again
        [
            *one(Descriptor(64)),
            BlockWrite(descriptor(0), Descriptor(64).words()),
            *started(0, fills=True),
        ],
    ),
    ("chain", one(Descriptor(64, following=0))),
    ("descriptor-reuse", [*drain(0, 1, 64), *drain(0, 1, 64), DRAINED, DRAINED]),
    ("descriptor-reuse", [*drain(0, 1, 64), Patch(descriptor(0) + 4, 1, 256), DRAINED]),
    ("queue-depth", [*starts(5), *[DRAINED] * 5]),
    ("outstanding", [*starts(4), *[DRAINED] * 4]),
    ("argument", [*drain(0, 2, 64), DRAINED]),
    ("aperture", one(Descriptor(64), offset=0x80000000)),
    ("granularity", one(Descriptor(64), offset=2)),
    ("bounds", one(Descriptor(1025))),
    ("bounds", one(Descriptor(1024), offset=4)),
    ("bounds", one(Descriptor(64, Dim(8, 1), Dim(8, 146)))),
    ("bounds", one(Descriptor(64, iteration=Dim(2, 961)), repeats=2)),
    ("await-nothing", [DRAINED]),
    ("await-nothing", [*drain(0, 1, 64, token=False), DRAINED]),
    ("await-nothing", [*drain(0, 1, 64), FILLED]),
    ("token-left", drain(0, 1, 64)),
    ("drain-unawaited", drain(0, 1, 64, token=False)),
    ("zero-length", one(Descriptor(0))),
    ("short-transfer", one(Descriptor(32))),
    ("wrap", one(Descriptor(65, Dim(8, 1), Dim(8, 16)))),
    ("wrap", one(Descriptor(64, d1=Dim(8, 16)))),
    ("iteration", one(Descriptor(64, iteration=Dim(2, 64)), repeats=3)),
]


@pytest.mark.parametrize(("rule", "stream"), BROKEN, ids=[rule for rule, _ in BROKEN])
def test_a_stream_that_breaks_a_rule(rule: str, stream: list[Operation]) -> None:
    assert rule in {finding.rule for finding in findings(stream, NPU2, SIZES)}
    with pytest.raises(StreamFault):
        check(stream, NPU2, SIZES)


GOOD: dict[str, list[Operation]] = {
    "copy": copy(),
    "everything awaited": [*drain(0, 1, 64), *fill(1, 0, 64), FILLED, DRAINED],
    "three at once": [*starts(3), *[DRAINED] * 3],
    "the oldest awaited": [*starts(3), DRAINED, *drain(3, 1, 64), *[DRAINED] * 3],
    "a queue of older fills": [
        *[operation for n in range(3) for operation in fill(n, 0, 64, token=False)],
        *drain(8, 1, 192),
        DRAINED,
        *copy(),
    ],
    "again": [*copy(), *copy()],
    "strided": one(Descriptor(512, Dim(8, 1), Dim(8, 16), 128)),
    "repeated": one(Descriptor(64, iteration=Dim(16, 64)), repeats=16),
    "the same, repeated": one(Descriptor(64), repeats=256),
    "all of it": one(Descriptor(1024)),
    "a chain": [
        *described(1, Descriptor(64), 0, 256),
        *described(0, Descriptor(64, following=1), 0),
        *started(0, fills=True),
        FILLED,
    ],
    "several columns": [
        *described(0, Descriptor(64), 1, column=2),
        *started(0, fills=False, column=2),
        *described(0, Descriptor(64), 1, 256, column=3),
        *started(0, fills=False, column=3),
        Await(2, 0, False, 0, columns=2),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_stream_that_keeps_the_rules(name: str) -> None:
    assert findings(GOOD[name], NPU2, SIZES) == ()
    check_words(encode(GOOD[name]), NPU2, SIZES)


def test_arguments_after_the_fifth_carry_the_aperture() -> None:
    sizes = (4096,) * 6
    rules = {finding.rule for finding in findings(sixth(0x80000100), NPU2, sizes)}
    assert rules == {"argument-count"}
    assert {f.rule for f in findings(sixth(0x100), NPU2, sizes)} == {"argument-count", "aperture"}
    check(sixth(0x80000100), NPU2, sizes, allow={"argument-count"})
    with pytest.raises(StreamFault, match="bounds"):
        check(sixth(0x80000000 + 4096 - 252), NPU2, sizes, allow={"argument-count"})


def test_a_rule_can_be_allowed_by_name() -> None:
    check(one(Descriptor(32)), NPU2, SIZES, allow={"short-transfer"})
    with pytest.raises(StreamFault, match=r"short-transfer: operation 3: .*256 at least"):
        check(one(Descriptor(32)), NPU2, SIZES, allow={"bounds"})


def test_a_stream_for_another_device_is_refused() -> None:
    with pytest.raises(StreamFault, match="device: header: generation 4"):
        check_words(encode(copy()), NPU1, SIZES)


def rules(*parts: list[Operation]) -> set[str]:
    stream = [operation for part in parts for operation in part]
    return {finding.rule for finding in findings(stream, NPU2, SIZES)}


def test_a_fill_ends_with_the_drain_it_may_be_for() -> None:
    """Two at once, as IRON's designs that alternate have them; whichever comes first."""
    first, second = fill(0, 0, 64, token=False), fill(1, 0, 64, token=False)
    done = [DRAINED, DRAINED]
    for one, two in [
        ([*drain(7, 1, 64), *first], [*drain(8, 1, 64), *second]),
        ([*first, *drain(7, 1, 64)], [*second, *drain(8, 1, 64)]),
    ]:
        assert "descriptor-reuse" in rules(one, two, first, done)
        assert rules(one, two, [DRAINED], first, [DRAINED]) == set()
        assert rules(one, two, done, first, second) == set()
    assert "descriptor-reuse" in rules(
        [*drain(7, 1, 64), *first, *drain(8, 1, 64), *second], [DRAINED], second, [DRAINED]
    )


def test_a_fill_does_not_end_with_another_fill() -> None:
    other = [*described(1, Descriptor(64), 0), *started(1, fills=True, channel=1, token=True)]
    awaited = [Await(0, 0, True, 1)]
    unawaited = fill(0, 0, 64, token=False)
    assert "descriptor-reuse" in rules(
        drain(7, 1, 64), unawaited, other, awaited, unawaited, [DRAINED]
    )
    assert rules(drain(7, 1, 64), unawaited, other, awaited, [DRAINED], unawaited) == set()


dims = st.builds(Dim, st.integers(0, 6), st.integers(1, 40))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 200), dims, dims, st.integers(1, 500))
def test_the_last_word_of_a_descriptor(length: int, d0: Dim, d1: Dim, d2_step: int) -> None:
    what = Descriptor(length, d0, d1 if d0.size else Dim(), d2_step)
    assert what.last == what.offsets(0, length).max()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), dims, dims, st.integers(1, 2**20), st.none() | st.integers(0, 15))
def test_a_descriptor_is_its_words(
    length: int, d0: Dim, d1: Dim, d2_step: int, following: int | None
) -> None:
    what = Descriptor(length, d0, d1, d2_step, Dim(4, 7), following=following)
    assert Descriptor.of(what.words()) == what


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("step", Descriptor(64, Dim(8, 2**20 + 1))),
        ("step", Descriptor(64, d2_step=0)),
        ("wrap", Descriptor(64, Dim(1024, 1))),
        ("length", Descriptor(2**32)),
        ("iteration", Descriptor(64, iteration=Dim(65))),
        ("chain", Descriptor(64, following=16)),
    ],
)
def test_what_a_descriptor_cannot_say(rule: str, what: Descriptor) -> None:
    with pytest.raises(StreamFault) as fault:
        what.words()
    assert fault.value.rule == rule
