"""What a tower has while it is at work is as much as the memory plan says, within a third."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.towers import TowerLike, write_tower
from flm.core.picture import Sight
from flm.engine.plan import TOWERS_AT_WORK, looking_bytes
from flm.graph.bundle import TOWER, WEIGHTS
from flm.graph.emit import Emitter, WeightStore
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.models.qwen35 import tower
from flm.settings import Settings

OFF_MOST = 4 / 3  # either way
PATCHES = 64, 64  # a side: as many as with 1,024 tokens
# In a process of its own: the most that it has had, less what it had before.
AT_WORK = """
import sys
from pathlib import Path

from flm.core.picture import Picture, Sight
from flm.devices.cpu import open_session
from flm.runner.eyes import run_of_tower
from flm.text.sight import inputs

def memory(name):
    return int(Path("/proc/self/status").read_text().split(name + ":")[1].split()[0]) * 1024

folder = Path(sys.argv[1])
sight = Sight("cells", 16, 2, 48, 0, 2**24, placeholder="", mark="")
session = open_session(str(folder / sys.argv[2]), folder, threads=2)
for rows, columns in ((2, 2), (int(sys.argv[3]), int(sys.argv[4]))):
    before = memory("VmRSS")
    picture = Picture(16 * columns, 16 * rows, bytes(768 * rows * columns))
    run = run_of_tower()
    session.run(None, dict(inputs(picture, sight)), run.options)
print(memory("VmHWM") - before)
"""


@pytest.mark.parametrize(("width", "mlp_width"), [(256, 1024), (384, 1024)])
def test_a_tower_at_work_takes_what_is_planned(width: int, mlp_width: int, tmp_path: Path) -> None:
    like = TowerLike(layers=2, width=width, mlp_width=mlp_width, heads=width // 64)
    source = GgufFile(write_tower(tmp_path / "mmproj.gguf", like, "F16"))
    shape = tower.shape(source)
    emitter = Emitter(WeightStore(tmp_path / WEIGHTS))
    tower.emit(source, emitter, Numerics(True))
    emitter.save(tmp_path / TOWER, "tower")
    sight = replace(shape.sight, patch_values=shape.patch_values)
    planned = looking_bytes(sight, Settings(image_max_tokens=1024)) / TOWERS_AT_WORK
    taken = measured(tmp_path)
    assert planned / OFF_MOST < taken < planned * OFF_MOST, (taken, planned)


def measured(folder: Path) -> int:
    told = [sys.executable, "-c", AT_WORK, str(folder), TOWER, *map(str, PATCHES)]
    return int(subprocess.run(told, capture_output=True, text=True, check=True).stdout)


def test_the_largest_picture_is_what_settings_and_model_allow() -> None:
    sight = Sight("cells", 16, 2, 48, 0, 2048 * 2048, placeholder="", mark="", patch_values=1000)
    four = TOWERS_AT_WORK * 4 * 1000 * 4  # patches of a token
    assert looking_bytes(sight, Settings(image_max_tokens=100)) == 100 * four
    assert looking_bytes(sight, Settings(image_max_tokens=16_384)) == 4096 * four
