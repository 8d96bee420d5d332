"""What is being answered, by the names that its client may cancel it by."""

from collections.abc import Iterable
from weakref import WeakValueDictionary

from flm.server.generate import Generation


class Running:
    """Names are a client's own: who has another API key neither learns of them nor ends them.

    Of two requests with one name the later has it.
    """

    def __init__(self) -> None:
        self._named: WeakValueDictionary[tuple[str | None, str], Generation] = WeakValueDictionary()

    def name(self, generation: Generation, names: Iterable[str], *, key: str | None) -> None:
        for name in names:
            self._named[key, name] = generation

    def cancel(self, name: str, *, key: str | None) -> bool:
        """Whether there was such a request that had not ended."""
        generation = self._named.get((key, name))
        if generation is None or generation.finished:
            return False
        generation.cancel()
        return True
