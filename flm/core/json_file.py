"""The small JSON files of a model's folder."""

import json
from pathlib import Path
from typing import Any

from flm.errors import BadModelFile


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, empty when there is no such file. Raises BadModelFile."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BadModelFile(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadModelFile(f"{path} is not a JSON object")
    return content
