"""Files of a Hugging Face repository: resumable, TLS verified, hashed.

Requests go through its own client, with its retries and tokens. The client forgets a partial file
when it is interrupted; we keep it, as `NAME.part`, and ask for the rest.
"""

import errno
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flm import console
from flm.errors import DownloadFailed
from flm.hub.disk import Progress, growth, require_room, sha256_of

TRIES = 2
# Which of several GGUF files to take when none is named: small, but not at any price.
QUANTIZATIONS = ("Q4_K_M", "Q4_1", "Q4_0", "Q4_K_S", "Q5_K_M", "Q5_0", "Q6_K", "Q8_0", "F16")
# The same of picture towers, which are small: as exact as they are, then smaller, then larger.
TOWER_TYPES = ("F16", "BF16", "Q8_0", "F32")
TOWER = "mmproj"
FOLDER_SUFFIXES = (".safetensors", ".json", ".jinja", ".model")
POOLING = "1_Pooling/config.json"  # how an encoder's tokens become one vector


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`sha256` of a large file, `blob` (git's sha1) of a small one."""

    name: str
    size_bytes: int
    sha256: str | None
    blob: str | None


def fetch(
    repository: str, file: str, folder: Path, *, sha256: str | None, progress: Progress
) -> list[Path]:
    """The named file; or of the whole repository the best GGUF file, or what makes a model folder.

    Raises DownloadFailed, NoRoom, OSError.
    """
    files = choose(repository, _listing(repository), file)
    return _fetch_all(repository, files, folder, sha256, progress)


def fetch_tower(repository: str, weights: str, folder: Path, *, progress: Progress) -> list[Path]:
    """The picture tower that the repository has beside a GGUF file; none where it has none.

    Raises DownloadFailed, NoRoom, OSError.
    """
    tower = choose_tower(_listing(repository), weights)
    return _fetch_all(repository, [tower], folder, None, progress) if tower else []


def _fetch_all(
    repository: str,
    files: Sequence[RemoteFile],
    folder: Path,
    sha256: str | None,
    progress: Progress,
) -> list[Path]:
    missing = [item for item in files if not _is_good(folder / item.name, item, sha256)]
    if missing:
        names = "\n".join(f"  - {item.name}" for item in missing)
        console.say(f"Missing files ({len(missing)}):\n{names}")
    require_room(folder, sum(item.size_bytes for item in missing), repository)
    for number, item in enumerate(missing, 1):
        console.say(f"Downloading {number}/{len(missing)}: {item.name}")
        _fetch_one(repository, item, folder, sha256, progress)
        console.say(
            f"Overall progress: {number / len(missing):.1%} ({number}/{len(missing)} files)"
        )
    return [folder / item.name for item in files]


def choose_tower(files: Sequence[RemoteFile], weights: str) -> RemoteFile | None:
    """In the same folder as the weights."""
    beside = Path(weights).parent
    found = [
        item
        for item in files
        if Path(item.name).parent == beside
        and TOWER in Path(item.name).name
        and item.name.endswith(".gguf")
    ]
    return min(found, key=lambda item: (_precision(item.name), item.name), default=None)


def _precision(name: str) -> int:
    """Its place in TOWER_TYPES; behind them all where none is named."""
    parts = re.split(r"[^A-Z0-9_]+", Path(name).stem.upper())
    return next((at for at, kind in enumerate(TOWER_TYPES) if kind in parts), len(TOWER_TYPES))


def choose(repository: str, files: Sequence[RemoteFile], wanted: str) -> list[RemoteFile]:
    """The files to take of those there are. Raises DownloadFailed."""
    ggufs = [item for item in files if item.name.endswith(".gguf")]
    whole = [item for item in ggufs if "-of-0" not in item.name and TOWER not in item.name]
    if wanted:
        if found := [item for item in files if item.name == wanted]:
            return found
        names = ", ".join(item.name for item in whole[:8])
        raise DownloadFailed(
            f"hf:{repository} has no file {wanted}.", fix=f"it has {names or 'no .gguf file'}"
        )
    for quantization in QUANTIZATIONS:
        for item in whole:
            if quantization.lower() in item.name.lower():
                if len(whole) > 1:
                    console.say(f"Of {len(whole)} GGUF files taking {item.name}")
                return [item]
    if whole:
        return whole[:1]
    if any(item.name.endswith(".safetensors") for item in files):
        top = [item for item in files if "/" not in item.name or item.name == POOLING]
        return [item for item in top if item.name.endswith(FOLDER_SUFFIXES)]
    raise DownloadFailed(
        f"hf:{repository} has neither a .gguf file nor .safetensors weights.",
        fix="name a repository that has; many are called ...-GGUF",
    )


def _listing(repository: str) -> list[RemoteFile]:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub

    try:
        found = huggingface_hub.HfApi().model_info(repository, files_metadata=True).siblings
    except Exception as error:  # its client's, httpx's and the socket's: all mean no listing
        raise _failure(repository, error) from error
    return [
        RemoteFile(
            item.rfilename, item.size or 0, item.lfs.sha256 if item.lfs else None, item.blob_id
        )
        for item in found or ()
        if not item.rfilename.startswith("/") and ".." not in item.rfilename.split("/")
    ]


def _fetch_one(
    repository: str, item: RemoteFile, folder: Path, sha256: str | None, progress: Progress
) -> None:
    part = folder / f"{item.name}.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(TRIES):
        with growth(part, item.name, item.size_bytes, progress):
            _download(repository, item, part)
        if _is_good(part, item, sha256):
            os.replace(part, folder / item.name)
            return
        console.warn(f"{item.name} is damaged: fetching it again")
        part.unlink()
    raise DownloadFailed(
        f"{item.name} of hf:{repository} does not have the hash that was promised; "
        f"it was fetched {TRIES} times.",
        fix="try again later, or look for a proxy that rewrites downloads",
    )


def _download(repository: str, item: RemoteFile, part: Path) -> None:
    """Append to `part` what it lacks of the file."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars

    disable_progress_bars()
    try:
        with part.open("ab") as file:
            if file.tell() > item.size_bytes:
                file.truncate(0)
            if file.tell() < item.size_bytes:
                http_get(
                    hf_hub_url(repository, item.name),
                    file,
                    resume_size=file.tell(),
                    headers=build_hf_headers(),
                    expected_size=item.size_bytes,
                )
    except OSError as error:
        if error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # of the disk, not of the network
        raise _failure(repository, error) from error
    except Exception as error:  # httpx's, and the client's own
        raise _failure(repository, error) from error


def _failure(repository: str, error: Exception) -> DownloadFailed:
    page = f"https://huggingface.co/{repository}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    kind = type(error).__name__
    if kind == "GatedRepoError" or status == 403:
        return DownloadFailed(
            f"hf:{repository} asks for its licence to be accepted first.",
            fix=f"accept it at {page}, then set HF_TOKEN to a token of yours",
        )
    if kind == "RepositoryNotFoundError" or status in (401, 404):
        return DownloadFailed(
            f"hf:{repository} does not exist, or is private.",
            fix=f"look at {page}; for a private one set HF_TOKEN",
        )
    first = str(error).strip().splitlines()[0] if str(error).strip() else kind
    return DownloadFailed(
        f"hf:{repository} could not be reached: {first}",
        fix="check the network and try again (it goes on where it stopped), or serve a file you "
        "have: flm serve ./model.gguf",
    )


def _is_good(path: Path, item: RemoteFile, sha256: str | None) -> bool:
    """Whether the file is here and what it should be: by the card's hash, which is of the weights,
    else the hub's.
    """
    if not path.is_file() or path.stat().st_size != item.size_bytes:
        return False
    if wanted := (None if item.name.endswith(".json") else sha256) or item.sha256:
        return sha256_of(path) == wanted
    return item.blob is None or _git_blob(path) == item.blob


def _git_blob(path: Path) -> str:
    data = path.read_bytes()
    digest: Any = hashlib.sha1(usedforsecurity=False)
    digest.update(f"blob {len(data)}\0".encode() + data)
    return str(digest.hexdigest())
