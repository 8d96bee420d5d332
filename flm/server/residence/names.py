"""What a request may call a model, and the class that it may ask for behind that name."""

from flm.core.request import Priority
from flm.models.cards import Card

# What clients may call themselves. The third is ours.
CLASSES = {each.value: each for each in (Priority.INTERACTIVE, Priority.AGENT)}


def whole_names(card: Card) -> set[str]:
    """Its tag as Lemonade writes it among them: that asks for embeddings by it."""
    lemonades = f"{card.tag.replace(':', '-')}-FLM"
    return {name.lower() for name in (card.tag, *card.aliases, lemonades)}


def served_names(card: Card) -> set[str]:
    """And without its size."""
    return {*whole_names(card), card.tag.partition(":")[0].lower()}


def model_names(model: str) -> set[str]:
    """What a client may mean: as written, without an owner before it or Ollama's tag after it."""
    name = model.strip().lower()
    return {n.removesuffix(":latest") for n in (name, name.rpartition("/")[2])}


def is_of(model: str, card: Card) -> bool:
    """Whether that is a name of its."""
    return not model_names(model).isdisjoint(served_names(card))


def split_class(model: str) -> tuple[str, str]:
    """`model@agent` as its two words; the second is empty without one."""
    name, at, word = model.strip().rpartition("@")
    return (name, word.lower()) if at else (word, "")
