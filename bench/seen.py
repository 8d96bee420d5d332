"""Pictures that nobody has seen before, and how long llama.cpp took to encode one."""

import base64
import re
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# What llama.cpp's log says before and after a picture is encoded, by its clock: min.s.ms.us
BEGUN, DONE = "encoding mtmd batch", "decoding image batch"
CLOCK = re.compile(r"^(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) ", re.MULTILINE)
SEED = 64
Message = dict[str, Any]
_numbers = count(1)


def new_picture(side: int) -> Image.Image:
    random = np.random.default_rng([SEED, next(_numbers)])
    spots = random.integers(0, 256, (side // 16, side // 16, 3), dtype=np.uint8)
    return Image.fromarray(spots).resize((side, side))


def about(picture: Image.Image, question: str) -> Message:
    out = BytesIO()
    picture.save(out, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
    shown = {"type": "image_url", "image_url": {"url": url}}
    return {"role": "user", "content": [shown, {"type": "text", "text": question}]}


def peer_encoded_s(log: Path) -> float:
    """Of the last picture."""
    lines = log.read_text(errors="replace").splitlines()
    begun, done = (
        next(_clock_s(line) for line in reversed(lines) if words in line) for words in (BEGUN, DONE)
    )
    return done - begun


def _clock_s(line: str) -> float:
    found = CLOCK.match(line)
    assert found, line
    minutes, seconds, thousandths, millionths = map(int, found.groups())
    return 60 * minutes + seconds + thousandths / 1e3 + millionths / 1e6
