"""What of the machine's memory is promised to what is loaded: a model that chats, and encoders."""

from collections.abc import Callable
from threading import Lock


class Promised:
    """Whoever holds `turn` plans and loads: no two count on the same memory. For any thread.

    `chats`: bytes of the model that chats, or is being loaded; `encoders`: theirs, by tag.
    `let_go` is asked when a model that chats does not fit beside them: those that nobody uses go.
    """

    def __init__(self) -> None:
        self.turn = Lock()
        self.chats = 0
        self.encoders: dict[str, int] = {}
        self.let_go: Callable[[], bool] = lambda: False  # whether there were any
