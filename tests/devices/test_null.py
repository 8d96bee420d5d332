"""The null device holds honest content, and shows a forgotten sync."""

import numpy as np
import pytest

from flm.core.tensor import MemoryKind, TensorSpec
from flm.devices.device import Array
from flm.devices.null import NullDevice, fingerprint
from flm.errors import PassCancelled
from flm.memory.layout import MemoryLayout
from tests.devices.test_contract import ROWS, STATE, TOKENS, Model, host, null_model

LAYOUT = MemoryLayout(ROWS + STATE)


@pytest.fixture
def model(tmp_path) -> Model:
    return null_model(tmp_path, LAYOUT)


def test_rows_hold_their_token_and_position_in_every_head(model: Model) -> None:
    memory = model.memory()
    model.read(memory, TOKENS, 9, lane=1)
    for index, tensor in enumerate(LAYOUT.rows):
        rows = host(memory)[tensor.name][1, :, : len(TOKENS)]  # [heads, T, width]
        expected = fingerprint(np.array(TOKENS), 0, tensor=index, heads=2)
        np.testing.assert_array_equal(rows[:, :, 0], expected)
        np.testing.assert_array_equal(rows[:, :, -1], expected)


@pytest.mark.parametrize("tensor", LAYOUT.tensors, ids=lambda tensor: tensor.name)
def test_logits_depend_on_all_that_memory_holds(model: Model, tensor) -> None:
    def logits(spoil: bool) -> Array:
        memory = model.memory()
        model.read(memory, TOKENS[:20], 20, lane=0)
        buffer = memory[tensor.name]
        buffer.to_host()
        if tensor.kind is MemoryKind.STATE:
            buffer.array()[0].flat[-1] += spoil
        else:  # each rows tensor is read at every n-th row in turn
            buffer.array()[0, 1, 6 + LAYOUT.rows.index(tensor), 0] += spoil
        buffer.to_device()
        return model.run(memory, [TOKENS[20:22]], [20])

    assert not np.array_equal(logits(spoil=False), logits(spoil=True))


def test_host_and_device_copies_meet_only_at_a_sync() -> None:
    buffer = NullDevice().allocate(TensorSpec("keys", (2, 1, 8, 2)))
    buffer.array()[:] = 1
    buffer.part(1, 2).to_device(range(2, 4))
    buffer.to_host()
    held = buffer.array()[:, 0, :, 0]
    assert np.argwhere(held == 1).tolist() == [[1, 2], [1, 3]]


def test_a_cancelled_pass_ends_and_the_next_runs(tmp_path) -> None:
    model = null_model(tmp_path, LAYOUT)
    cancelling = NullDevice(during=lambda: program.cancel())
    program = cancelling.load(tmp_path / "null.json")
    memory = model.memory()
    with pytest.raises(PassCancelled):
        Model(model.device, program, LAYOUT, 500).run(memory, [TOKENS[:4]], [0], lane=1)
    fresh = model.run(memory, [TOKENS[:4]], [0], lane=0)
    assert np.isfinite(fresh).all()
