"""What shares the machine's memory with the model that chats."""

from dataclasses import dataclass, field

from flm.prefix.left import Left


@dataclass(frozen=True, slots=True)
class Beside:
    """Encoders that are loaded, by tag, with the bytes they take; and what models that chatted
    before have left of prompts, within the budget of the one that is loaded.
    """

    encoders: dict[str, int] = field(default_factory=dict)
    left: Left = field(default_factory=Left)
