"""What of the machine's memory is promised to what is loaded: a model that chats, and encoders."""

from collections.abc import Callable
from threading import Lock

from flm.engine.beside import Beside


class Promised:
    """Whoever holds `turn` plans and loads: no two count on the same memory. For any thread.

    `chats`: bytes of the model that chats or, while there is none, of what was left of prompts.
    `let_go` is asked when a model that chats does not fit beside encoders: the unused ones go.
    """

    def __init__(self, beside: Beside) -> None:
        self.turn = Lock()
        self.chats = 0
        self.encoders, self.left = beside.encoders, beside.left
        self.let_go: Callable[[], bool] = lambda: False  # whether there were any
