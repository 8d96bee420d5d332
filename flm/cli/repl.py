"""The loop of flm run: read a message or a /command, show the reply as it is written."""

from collections.abc import Callable, Sequence
from contextlib import closing

from flm import console
from flm.cli import slash
from flm.cli.chat import Chat
from flm.cli.kept import draw_gain
from flm.cli.markup import Markup
from flm.cli.prompt import silent_keys
from flm.cli.resident import load_resident
from flm.core.chat import DeltaKind
from flm.core.event import Usage
from flm.core.picture import Picture
from flm.core.sizes import counted
from flm.engine.conversation import Conversations
from flm.engine.residency import Resident
from flm.errors import FlmError
from flm.hub.reference import resolve
from flm.settings import Settings

GREY = "90"
STOPPED = "\n(stopped)\n"


class Repl:
    """One model is loaded at a time; /load closes it before the next one opens."""

    def __init__(self, resident: Resident, settings: Settings) -> None:
        self.settings = settings
        self.resident = resident
        self.chat = Chat(Conversations(resident), resident.card.sampling)
        self.pictures: list[Picture] = []  # that go with the next message
        self.verbose = False
        self.over = False

    def run(self, read: Callable[[], str]) -> None:
        """Until /bye or the end of input. Ctrl-C at the prompt clears it, in a reply stops that."""
        while not self.over:
            try:
                self.take(read())
            except KeyboardInterrupt:
                console.write("(Ctrl-D or /bye leaves)\n")
            except EOFError:
                self.over = True

    def take(self, line: str) -> None:
        """One message or /command. What goes wrong is told; the chat goes on."""
        text = line.strip()
        try:
            if text.startswith("/"):
                slash.obey(self, text)
            elif text:
                self.answer(text)
        except FlmError as error:
            console.fail(error.message, fix=error.fix)

    def answer(self, text: str) -> None:
        kind, markup = DeltaKind.CONTENT, Markup()
        shown, self.pictures = self.pictures, []
        try:
            with silent_keys(), closing(self.chat.ask(text, shown)) as reply:
                for delta in reply:
                    if delta.kind is not kind:
                        console.write("\n")
                        kind = delta.kind
                    if kind is DeltaKind.REASONING:
                        console.write(delta.text, colour=GREY)
                    else:
                        console.write(markup.add(delta.text))
            console.write(markup.end() + "\n")
        except KeyboardInterrupt:
            console.write(markup.end() + STOPPED)
        except FlmError:
            self.pictures = shown
            raise
        usage = self.chat.usage
        if usage and self.verbose:
            console.write(verbose_block(usage, self.resident.context_length))
        elif usage and console.on_terminal():
            console.write(draw_gain(usage))

    def show(self, paths: Sequence[str]) -> None:
        """Pictures, with the next message. Raises BadRequest, UnsupportedFeature."""
        reader = self.resident.reader(self.settings)
        self.pictures += [reader.shown(path, path) for path in paths]

    def open(self, model: str, settings: Settings) -> None:
        """Another model, or the same with other settings, in this one's place.

        If it cannot be loaded, the old one is loaded again.
        """
        resolve(model)  # a slip costs no second loading
        old = self.resident.card.tag
        self.resident.close()
        try:
            self.resident = load_resident(model, settings, say=console.debug)
            self.settings = settings
        except FlmError:
            self.resident = load_resident(old, self.settings, say=console.debug)
            raise
        finally:
            self.chat.conversations = Conversations(self.resident)
        if self.resident.card.tag != old:
            self.chat.sampling = self.resident.card.sampling
            if forgotten := self.chat.forget_pictures() + len(self.pictures):
                self.pictures = []
                console.say(f"{counted(forgotten, 'picture')} said so far it does not see")


def verbose_block(usage: Usage, context_length: int) -> str:
    total = usage.prompt_tokens + usage.completion_tokens
    return (
        f"\n  Total tokens:        {total} ({total / context_length:.1%})\n"
        f"  Time to first token: {usage.queue_s + usage.prefill_s:.2f} s "
        f"({usage.cached_tokens} of {usage.prompt_tokens} tokens kept)\n"
        f"  Prefill speed:       {usage.read_per_s:.1f} tokens/s\n"
        f"  Decoding speed:      {usage.written_per_s:.1f} tokens/s\n"
    )
