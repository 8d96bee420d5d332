"""What kernels are made of, as one hash: package and sources provably belong together."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

SUFFIXES = (".py", ".cc", ".hpp", ".toml")
SHARED = ("include",)  # of every kernel
IMPORTS = re.compile(r"^\s*from npu_kernels(?:\.| import )(\w+)", re.MULTILINE)


@lru_cache(maxsize=64)
def digest(*folders: str) -> str:
    """Over folders of npu_kernels/, what they import of it, and what every kernel includes."""
    import npu_kernels

    root = Path(npu_kernels.__file__).parent
    whole = hashlib.sha256()
    for path in sorted(_files(root, {*folders, *SHARED})):
        whole.update(f"{path.relative_to(root)}\0".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def _files(root: Path, names: set[str]) -> set[Path]:
    """Of these folders and modules, and of all that they import."""
    found: set[Path] = set()
    left, seen = set(names), set(names)
    while left:
        name = left.pop()
        module, inside = root / f"{name}.py", (root / name).rglob("*")
        paths = [module] if module.exists() else [p for p in inside if p.suffix in SUFFIXES]
        found.update(paths)
        for path in paths:
            if path.suffix == ".py":
                more = set(IMPORTS.findall(path.read_text(encoding="utf-8"))) - seen
                left |= more
                seen |= more
    return found
