"""What is not simulated says so by its name, never with a wrong answer."""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from npu_kernels.iron_sim import DesignFault, installed, record_of, simulate
from tests.kernels.designs import KERNELS, copying, tensor


@pytest.mark.parametrize(
    "module",
    ["aie.dialects.aie", "aie.utils.config", "aie.iron.kernels", "aie.extras.context"],
)
def test_modules(module: str) -> None:
    with installed(), pytest.raises(NotImplementedError, match=f"import aie.*{module[4:9]}"):
        importlib.import_module(module)


def test_names() -> None:
    with installed():
        import aie.iron

        with pytest.raises(NotImplementedError, match=r"aie\.iron\.TileDma"):
            _ = aie.iron.TileDma
        with pytest.raises(NotImplementedError, match=r"aie\.iron\.controlflow\.if_"):
            _ = importlib.import_module("aie.iron.controlflow").if_


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda iron: iron.ObjectFifo(tensor(4), plio=True), r"ObjectFifo\(plio=...\)"),
        (lambda iron: iron.ObjectFifo(tensor(4)).set_repeat_count(2), "set_repeat_count"),
        (lambda iron: iron.ObjectFifo(tensor(4)).cons(channel=1), r"cons\(channel=...\)"),
        (lambda iron: iron.Worker(None, data_size=64), r"Worker\(data_size=...\)"),
        (lambda iron: iron.Runtime(lambda: None, trace=4), r"Runtime\(trace=...\)"),
        (lambda iron: iron.Buffer(tensor(4), name="b")[0], "b.*read outside"),
        (lambda iron: iron.jit(lambda: None)(1), "a call of the iron.jit design"),
        (lambda iron: iron.ObjectFifo(np.ndarray), "as a tensor's type"),
    ],
)
def test_calls(call: Callable[[Any], Any], name: str) -> None:
    with installed():
        import aie.iron as iron

        with pytest.raises(NotImplementedError, match=name):
            call(iron)


def branch(value: Any) -> None:
    if value == 1:
        raise AssertionError("never taken")


@pytest.mark.parametrize(
    "use",
    [branch, int, lambda value: [0, 1][value], lambda value: value + np.float32(1) == value / 2],
)
def test_python_does_not_branch_on_what_only_the_core_knows(use: Callable[[Any], Any]) -> None:
    """mlir-aie would decide once, when the design is built."""

    def body(come: Any, leave: Any, copy: Any) -> None:
        use(come.acquire(1)[0])

    with pytest.raises(NotImplementedError, match=r"only the core knows|/ of whole") as refusal:
        copying(body=body)
    assert refusal.value.__notes__ == ["in the body of worker body(0,2)"]


def test_a_python_loop_over_an_object_is_refused() -> None:
    def body(come: Any, leave: Any, copy: Any) -> None:
        for _ in come.acquire(1):
            pass

    with pytest.raises(NotImplementedError, match="a Python loop over in"):
        copying(body=body)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (lambda come, leave: [come], "1 arguments, 2 declared"),
        (lambda come, leave: [come, 3], "argument 1: 3 where int32"),
        (lambda come, leave: [come, leave[0]], "argument 1: Value"),
    ],
)
def test_kernels_get_what_they_declare(arguments: Callable[..., list[Any]], what: str) -> None:
    def body(come: Any, leave: Any, copy: Any) -> None:
        copy(*arguments(come.acquire(1), leave.acquire(1)))

    with pytest.raises(DesignFault, match=f"kernel-arguments: copy.*{what}"):
        copying(body=body)


def test_a_kernel_without_code_is_an_error() -> None:
    with pytest.raises(DesignFault, match=r"kernel-missing: copy: no code for it \(given: \[\]\)"):
        simulate(copying(), [np.zeros(256, np.int32)] * 2, {})


def test_objects_end_where_they_end() -> None:
    def body(come: Any, leave: Any, copy: Any) -> None:
        leave.acquire(1)[64] = 1

    with pytest.raises(DesignFault, match=r"l1-bounds: out: index \(64,\) of \(64,\)"):
        copying(body=body)


def test_buffers_are_as_declared() -> None:
    with pytest.raises(DesignFault, match="argument-size: argument 1: 512 bytes given, 1024"):
        simulate(copying(), [np.zeros(256, np.int32), np.zeros(256, np.int16)], KERNELS)


def test_without_a_device_mlir_aie_would_take_an_npu1() -> None:
    with installed():
        import aie.iron as iron

        with pytest.raises(DesignFault, match="device-unset"):
            iron.get_current_device()


def test_a_device_by_name_has_one_column_unless_all_are_asked_for() -> None:
    with installed():
        from aie.iron.device import from_name

        assert [from_name("npu2", **given).cols for given in ({}, {"n_cols": None})] == [1, 8]
        with pytest.raises(ValueError, match="9 columns of npu2, which has 8"):
            from_name("npu2", n_cols=9)


def test_a_real_mlir_aie_is_never_shadowed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("aie")
    monkeypatch.setitem(sys.modules, "aie", real)
    with pytest.raises(RuntimeError, match="mlir-aie is here"), installed():
        pass
    assert sys.modules["aie"] is real


def test_nothing_is_left_of_the_stand_ins() -> None:
    before = set(sys.modules), list(sys.meta_path)
    with installed():
        assert "aie.iron" in sys.modules
    assert (set(sys.modules), list(sys.meta_path)) == before


def test_a_jit_design_is_resolved_with_its_parameters() -> None:
    with installed():
        import aie.iron as iron
        from aie.iron.device import NPU2

        @iron.jit(aiecc_flags=["--anything"])
        def passes(a: iron.In, b: iron.Out, *, size: iron.CompileTime[int], depth: int = 3) -> Any:
            come = iron.ObjectFifo(tensor(size), depth=depth, name="in")
            out = come.cons().forward(name="out")

            def sequence(a: Any, b: Any, come: Any, out: Any) -> None:
                come.fill(a)
                out.drain(b, wait=True)

            hosts = [tensor(64), tensor(64), come.prod(), out.cons()]
            return iron.Program(NPU2(), iron.Runtime(sequence, hosts)).resolve_program()

        record = record_of(passes.specialize(size=32))
    assert record.fifo("in").producer.depth == 3
    got = np.zeros(64, np.int32)
    simulate(record, [np.arange(64, dtype=np.int32), got], {})
    np.testing.assert_array_equal(got, np.arange(64))
