"""What kernels are made of, as one hash: package and sources provably belong together."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

SUFFIXES = (".py", ".cc", ".hpp", ".toml")
SHARED = ("include",)  # of every kernel


@lru_cache(maxsize=64)
def digest(*folders: str) -> str:
    """Over folders of npu_kernels/, with what every kernel includes."""
    import npu_kernels

    root = Path(npu_kernels.__file__).parent
    whole = hashlib.sha256()
    for folder in sorted({*folders, *SHARED}):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                whole.update(f"{path.relative_to(root)}\0".encode())
                whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()
