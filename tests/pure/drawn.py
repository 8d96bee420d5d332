"""Files of pictures, made from a seed: every kind that clients send."""

import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

SEED = 88
WIDTH, HEIGHT = 13, 9
ORIENTATION = 0x0112
GREY, COLOUR, PALETTE, GREY_CLEAR, COLOUR_CLEAR = 0, 2, 3, 4, 6  # PNG's kinds
# Of an interlaced PNG: first row and column, steps.
PASSES = (
    (0, 0, 8, 8),
    (0, 4, 8, 8),
    (4, 0, 8, 4),
    (0, 2, 4, 4),
    (2, 0, 4, 2),
    (0, 1, 2, 2),
    (1, 0, 2, 1),
)
Samples = npt.NDArray[np.integer[Any]]


def waves(width: int = WIDTH, height: int = HEIGHT, *, bits: int = 8, bands: int = 3) -> Samples:
    """[height, width, bands], no two rows or columns alike."""
    random = np.random.default_rng([SEED, width, height, bands])
    y, x = np.mgrid[:height, :width]
    each = [np.sin(x / (2 + k) + y * (k - 1.3) / 3 + k) for k in range(bands)]
    values = 0.5 + 0.4 * np.stack(each, axis=-1) + random.normal(0, 0.04, (height, width, bands))
    most = 2**bits - 1
    return np.rint(np.clip(values, 0, 1) * most).astype(np.uint16 if bits == 16 else np.uint8)


def image(mode: str = "RGB", size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    bands = len(Image.new(mode, (1, 1)).getbands())
    samples = waves(*size, bands=bands)
    return Image.fromarray(samples[..., 0] if bands == 1 else samples, mode)


def file(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    out = BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(
    samples: Samples,
    kind: int,
    *,
    bits: int = 8,
    interlaced: bool = False,
    before: tuple[tuple[bytes, bytes], ...] = (),
) -> bytes:
    """With chunks that Pillow does not write; `before` stand before the pixels."""
    height, width = samples.shape[:2]
    parts = [samples[y::down, x::along] for y, x, down, along in PASSES]
    rows = [row for part in (parts if interlaced else [samples]) for row in part if row.size]
    raw = b"".join(b"\0" + _packed(row, bits) for row in rows)
    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, interlaced)
    chunks = [(b"IHDR", head), *before, (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks)


def _packed(row: Samples, bits: int) -> bytes:
    if bits == 16:
        return row.astype(">u2").tobytes()
    if bits == 8:
        return row.astype(np.uint8).tobytes()
    every = (row.reshape(-1, 1) >> np.arange(bits - 1, -1, -1)) & 1
    return np.packbits(every.astype(np.uint8).reshape(-1)).tobytes()


def turned(form: str, way: int) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = way
    options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(form, {})
    return file(image(size=(16, 8)), form, exif=exif, **options)


def files() -> dict[str, bytes]:
    """By name."""
    return dict([*_pngs(), *_palettes(), *_jpegs(), *_webps(), *_moving(), *_turned()])


def _pngs() -> Iterator[tuple[str, bytes]]:
    for bits in (1, 2, 4, 8):
        yield f"grey of {bits}", png(waves(bits=bits, bands=1), GREY, bits=bits)
    for bits in (8, 16):
        yield f"colour of {bits}", png(waves(bits=bits), COLOUR, bits=bits)
        clear = png(waves(bits=bits, bands=4), COLOUR_CLEAR, bits=bits)
        yield f"colour to see through of {bits}", clear
        clear = png(waves(bits=bits, bands=2), GREY_CLEAR, bits=bits)
        yield f"grey to see through of {bits}", clear
    yield "interlaced", png(waves(), COLOUR, interlaced=True)
    grey = waves(bands=1)
    one = struct.pack(">H", int(grey[3, 5, 0]))
    yield "grey with a clear value", png(grey, GREY, before=((b"tRNS", one),))
    colour = waves()
    one = struct.pack(">3H", *map(int, colour[3, 5]))
    yield "colour with a clear value", png(colour, COLOUR, before=((b"tRNS", one),))
    for size in ((1, 1), (1, 40), (60, 2)):
        yield "{} by {}".format(*size), file(image(size=size))


def _palettes() -> Iterator[tuple[str, bytes]]:
    indices = waves(bits=4, bands=1)
    colours = (b"PLTE", waves(16, 1).tobytes())
    yield "palette", png(indices, PALETTE, before=(colours,))
    yield "palette of 4", png(indices, PALETTE, bits=4, before=(colours,))
    shares = (b"tRNS", bytes(range(0, 240, 24)))  # of the first ten
    yield "palette to see through", png(indices, PALETTE, before=(colours, shares))
    still = image().quantize(16)
    yield "gif", file(still, "GIF")
    yield "gif to see through", file(still, "GIF", transparency=3)


def _jpegs() -> Iterator[tuple[str, bytes]]:
    for mode in ("L", "RGB", "CMYK"):
        yield f"jpeg {mode}", file(image(mode), "JPEG", quality=90)
    yield "jpeg progressive", file(image(), "JPEG", progressive=True)
    yield "jpeg of half colour", file(image(), "JPEG", subsampling=2)
    yield "jpeg of two", file(image(), "MPO", save_all=True, append_images=[image("RGB", (8, 8))])


def _webps() -> Iterator[tuple[str, bytes]]:
    yield "webp", file(image(), "WEBP", lossless=True)
    yield "webp lossy", file(image(), "WEBP", quality=80)
    yield "webp to see through", file(image("RGBA"), "WEBP", lossless=True, exact=True)


def _moving() -> Iterator[tuple[str, bytes]]:
    first = image()
    later = [first.rotate(180), first.transpose(Image.Transpose.FLIP_TOP_BOTTOM)]
    yield "png moving", file(first, "PNG", save_all=True, append_images=later)
    aside = {"default_image": True}  # a still one for who cannot move it
    yield "png moving aside", file(first, "PNG", save_all=True, append_images=later, **aside)
    yield "webp moving", file(first, "WEBP", save_all=True, append_images=later, lossless=True)
    few = [each.quantize(16) for each in (first, *later)]
    yield "gif moving", file(few[0], "GIF", save_all=True, append_images=few[1:])


def _turned() -> Iterator[tuple[str, bytes]]:
    for form in ("PNG", "JPEG", "WEBP"):
        for way in range(1, 9):
            yield f"{form.lower()} turned {way}", turned(form, way)
