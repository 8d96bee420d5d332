"""What request bodies have in common, whichever API they are written for.

Fields we do not know pass (agents send many); fields with an effect we cannot give are refused
by name, never dropped in silence.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from flm import console
from flm.core.request import Priority, SamplingParams
from flm.errors import BadRequest, UnsupportedFeature
from flm.numerals import duration_s
from flm.server.residence.names import CLASSES, split_class

STOPS_MAX, STOP_CHARS_MAX = 16, 256
SALT_CHARS_MAX = 256
ID_CHARS_MAX = 256
TEMPERATURE_MIN = 1e-3  # below, the likeliest token is as good as certain: greedy
SAMPLING = (  # fields that mean the same in SamplingParams
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
EFFORTS: Mapping[str, str] = {  # and the nearest that models were trained on
    "none": "none",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def whole(value: object) -> object:
    """5.0 for 5, from languages with one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


ItemT = TypeVar("ItemT")
# The first wrong item is told, and a million others are not looked at.
Many = Annotated[list[ItemT], Field(fail_fast=True)]
Whole = Annotated[int | None, BeforeValidator(whole)]


class Body(BaseModel):
    """No value is converted: "1" is not a number, and 1 is not true."""

    model_config = ConfigDict(strict=True)


class SamplingBody(Body):
    """How tokens are to be chosen."""

    model_config = ConfigDict(extra="allow")

    seed: Whole = Field(None, ge=-(2**63), lt=2**64)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: Whole = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)


def _timed(value: int | float | str | None) -> int | float | str | None:
    if value is not None:
        duration_s(value)
    return value


class ModelBody(Body):
    """What a request may say of the model that it names."""

    model_config = ConfigDict(extra="allow")

    model: str
    # How long it stays loaded afterwards, as Ollama has it: 300, "5m", 0, -1 for ever.
    keep_alive: Annotated[int | float | str | None, AfterValidator(_timed)] = None

    @property
    def kept_s(self) -> float | None:
        """What `keep_alive` says, in seconds; None is for ever."""
        return None if self.keep_alive is None else duration_s(self.keep_alive)


class AskingBody(ModelBody):
    """What every request for a reply may say."""

    class_: Literal["interactive", "agent"] | None = Field(None, alias="class")
    cache_salt: str | None = Field(None, min_length=1, max_length=SALT_CHARS_MAX)
    request_id: str | None = Field(None, max_length=ID_CHARS_MAX)  # by which it may be cancelled
    stream: bool | None = None
    # Of each image, as FastFlowLM has it; a server's own limit stays.
    image_max_tokens: Whole = Field(
        None, ge=1, validation_alias=AliasChoices("image-max-tokens", "image_max_tokens")
    )

    @property
    def asks(self) -> bool:
        """Whether a reply is wanted, not only that the model is there."""
        return True

    @property
    def window_wanted(self) -> int:
        """In tokens; 0 where nothing is said of it."""
        return 0

    @property
    def priority(self) -> Priority:
        return CLASSES.get(self.class_ or split_class(self.model)[1], Priority.INTERACTIVE)


def sampling(body: SamplingBody, defaults: SamplingParams) -> SamplingParams:
    """The card's defaults where the body is silent."""
    given: dict[str, Any] = {
        name: getattr(body, name) for name in SAMPLING if getattr(body, name) is not None
    }
    if given.get("temperature", 1) < TEMPERATURE_MIN:
        given["temperature"] = 0.0
    if given.get("top_k") in (0, -1):
        given["top_k"] = None
    if "seed" in given:  # -1 is llama.cpp's and Ollama's word for any
        given["seed"] = None if given["seed"] == -1 else given["seed"] % 2**64
    return dataclasses.replace(defaults, **given)


def stop_strings(given: str | list[str] | None, *, param: str) -> tuple[str, ...]:
    stops = tuple(stop for stop in ([given] if isinstance(given, str) else given or []) if stop)
    if len(stops) > STOPS_MAX or any(len(stop) > STOP_CHARS_MAX for stop in stops):
        raise BadRequest(
            f"{param} takes up to {STOPS_MAX} texts of up to {STOP_CHARS_MAX} characters",
            fix="send fewer or shorter ones",
            param=param,
        )
    return stops


def effort_known(given: object, *, param: str) -> str:
    """In the words that templates know."""
    if not isinstance(given, str) or given not in EFFORTS:
        raise BadRequest(
            f"{param} {str(given)[:40]!r} is not known",
            fix=f"take one of {', '.join(EFFORTS)}",
            param=param,
        )
    return EFFORTS[given]


def refuse_fields(
    body: Body, unsupported: Mapping[str, tuple[object, ...]], *, within: str = ""
) -> None:
    """Raises UnsupportedFeature for one of these fields, unless its value is one that does nothing;
    what else we do not know is only noted.
    """
    extra = body.model_extra or {}
    for name, idle in unsupported.items():
        if extra.get(name) is not None and extra[name] not in idle:
            raise not_supported(within + name, f"{within}{name} is not supported")
    if unknown := extra.keys() - unsupported.keys():
        console.debug(f"ignored request fields: {', '.join(sorted(unknown))}")


def not_supported(param: str, message: str) -> UnsupportedFeature:
    return UnsupportedFeature(message, fix=f"leave {param} out", param=param)


def warn_skipped(kinds: list[str], given: int) -> None:
    """Of tools that are not the client's own to run."""
    if kinds:
        console.warn(f"{len(kinds)} of {given} tools skipped, not functions but {kinds[0]!r:.40}")
