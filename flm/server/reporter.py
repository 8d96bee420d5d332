"""What becomes of one request, told to those who listen."""

from collections.abc import Mapping
from typing import Any

from flm.core.request import Request
from flm.engine.answer import Answer
from flm.engine.residency import Resident
from flm.prefix.explain import Explanation
from flm.server.routes.news import News


class Reporter:
    """`request` is the first that was made of what a client asked."""

    def __init__(self, news: News, resident: Resident, request: Request) -> None:
        self._news = news
        self._resident = resident
        self._request = request

    def asked(self) -> None:
        self._news.follow(self._resident)
        self._tell("asked", prompt_tokens=len(self._request.prompt.tokens))

    def admitted(self, answer: Answer) -> None:
        if answer.request is self._request:
            self._tell("admitted", cached_tokens=answer.cached_tokens)

    def ended(self, status: int, taken: Mapping[str, Any]) -> None:
        """`taken`: its account."""
        fields = {name: value for name, value in taken.items() if name != "request_id"}
        self._tell("ended", status=status, **fields)

    def explained(self, answer: Answer, why: Explanation) -> None:
        """On any thread."""
        fields = {
            "id": answer.request.id,
            "class": why.change.value,
            "differs_at": why.differs_at,
            "place": {"path": str(why.place), "offset": why.place.offset},
            "fate": {"what": str(why.fate), "offset": why.fate.offset} if why.fate else None,
            "advice": why.advice,
        }
        text = {"before": why.before, "ours": why.ours, "theirs": why.theirs}
        self._news.tell(self._request.prompt.domain, "explained", fields, text)

    def _tell(self, what: str, **fields: Any) -> None:
        known = {"id": self._request.id, "model": self._resident.card.tag}
        self._news.tell(self._request.prompt.domain, what, known | fields)
