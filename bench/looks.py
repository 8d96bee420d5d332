"""What the towers of other families take for a picture: random weights of their sizes, F16.

Of large ones fewer layers are run and counted times as many, as their rows say. flm's tower is
driven as it is served; llama.cpp, where it takes the file beside a text model of bench/likes.py, is
a server, and what the tower makes has that model's width. They take turns, each picture is new.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from bench.client import Client
from bench.likes import LIKES
from bench.random_models import write
from bench.rows import keep
from bench.seen import about, new_picture, peer_encoded_s
from bench.servers import Server, llama_cpp_server
from bench.shapes import FOLDER
from bench.towers import TowerLike, write_tower
from flm.core.picture import Picture, placed
from flm.devices.cpu import open_session
from flm.devices.machine import cores_physical
from flm.graph.emit import Emitter, WeightStore
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.models.family import towers_of
from flm.runner.eyes import Eyes
from flm.text.sight import fitted, views

TOKENS_MAX, CONTEXT = 1024, 2048
QUESTION = "What is it?"


@dataclass(frozen=True, slots=True)
class Look:
    """`layers` of `like` are run. `text` is the family, of LIKES, that stands behind it for
    llama.cpp; empty: flm alone.
    """

    family: str
    like: TowerLike
    layers: int
    sides: Sequence[int]
    text: str = ""

    @property
    def times(self) -> float:
        return self.like.layers / self.layers


QWEN25 = TowerLike(
    layers=32,
    width=1280,
    mlp_width=3420,
    heads=16,
    out_width=2048,
    patch=14,
    side=40,
    projector="qwen2.5vl_merger",
    mixed=False,
    plain=True,
    keys={"n_wa_pattern": 8},
)
QWEN3 = TowerLike(layers=24, width=1024, mlp_width=4096, heads=16, out_width=2560, deep=(5, 11, 17))
SIGLIP = TowerLike(
    layers=27,
    width=1152,
    mlp_width=4304,
    heads=16,
    out_width=2560,
    patch=14,
    side=64,
    projector="gemma3",
    frames=1,
    mixed=False,
)
MINICPM = replace(
    SIGLIP,
    out_width=1024,
    side=70,
    projector="minicpmv4_6",
    keys={"image_size": 448, "projector.scale_factor": 4, "wa_layer_indexes": [6]},
)
LOOKS = {
    "Qwen2.5-VL": Look("qwen25vl", QWEN25, 8, (448, 896), text="qwen35"),
    "Qwen3-VL 4B": Look("qwen3vl", QWEN3, 24, (512, 1024)),
    "Gemma 3": Look("gemma3", SIGLIP, 9, (896,), text="gemma3"),
    "MiniCPM-V 4.6": Look("qwen35", MINICPM, 27, (448,)),
}


def towers(vocabulary: GgufFile, rounds: int) -> None:
    for name, look in LOOKS.items():
        with tempfile.TemporaryDirectory(dir=FOLDER) as place:
            _look(name, look, Path(place), vocabulary, rounds)


def _look(name: str, look: Look, folder: Path, vocabulary: GgufFile, rounds: int) -> None:
    text = replace(LIKES[look.text], sees=True) if look.text else None
    out_width = text.width if text else look.like.out_width
    like = replace(look.like, layers=look.layers, out_width=out_width)
    mmproj = write_tower(folder / "mmproj.gguf", like, "F16")
    eyes = _eyes(GgufFile(mmproj), look.family, folder)
    log = folder / "peer.log"
    peer: AbstractContextManager[Server | None] = nullcontext()
    if text:
        write(folder / "text.gguf", text, text.type, vocabulary)
        peer = llama_cpp_server(
            folder / "text.gguf",
            threads=cores_physical(),
            slots=1,
            context=CONTEXT,
            log=log,
            tower=mmproj,
        )
    with peer as server:
        for side in look.sides:
            tokens, cpu_s, wall_s, peer_s = 0, list[float](), list[float](), list[float]()
            for _ in range(rounds):
                image = new_picture(side)
                picture = Picture(side, side, image.tobytes())
                seen = fitted(picture, eyes.sight, tokens_max=TOKENS_MAX, place="it")
                (view,) = views(seen, eyes.sight, 0)
                began, began_cpu = time.perf_counter(), time.process_time()
                tokens = len(eyes.rows(placed(view, 0)))
                wall_s.append((time.perf_counter() - began) * look.times)
                cpu_s.append((time.process_time() - began_cpu) * look.times)
                if server:
                    Client(server.url).chat([about(image, QUESTION)], 1)
                    peer_s.append(peer_encoded_s(log) * look.times)
            _keep(name, look, side, tokens, cpu_s, wall_s, peer_s)


def _keep(
    name: str,
    look: Look,
    side: int,
    tokens: int,
    cpu_s: Sequence[float],
    wall_s: Sequence[float],
    peer_s: Sequence[float],
) -> None:
    flm_s, both = statistics.median(wall_s), dict[str, float]()
    if peer_s:
        llama_cpp_s = statistics.median(peer_s)
        both = {"llama_cpp_s": llama_cpp_s, "ratio": llama_cpp_s / flm_s}
    keep(
        "pictures",
        f"tower of {name}, {side}x{side}, F16",
        tokens=tokens,
        layers=look.layers,
        times=look.times,
        beside="llama.cpp" if peer_s else "nothing: flm alone",
        flm_cpu_s=statistics.median(cpu_s),
        flm_s=flm_s,
        **both,
        flm_all_s=wall_s,
        llama_cpp_all_s=peer_s,
    )


def _eyes(source: GgufFile, family: str, folder: Path) -> Eyes:
    """As served."""
    emitter = Emitter(WeightStore(folder / "tower.bin"))
    kind = next(each for each in towers_of(family) if each.has(source))
    shape = kind.shape(source)
    kind.emit(source, emitter, Numerics(int8_activations=True))
    emitter.save(folder / "tower.onnx", "tower")
    session = open_session(str(folder / "tower.onnx"), folder, threads=cores_physical())
    return Eyes(session, shape.sight, width=shape.out_width, bytes_max=0)
