"""What becomes of one request, told to those who listen."""

from collections.abc import Mapping
from typing import Any

from flm.core.request import Request
from flm.engine.answer import Answer
from flm.engine.residency import Resident
from flm.prefix.explain import Explanation
from flm.server.routes.news import News
from flm.server.routes.prefix_replies import difference, texts


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
        fields = {"id": answer.request.id, **difference(why)}
        self._news.tell(self._request.prompt.domain, "explained", fields, texts(why))

    def _tell(self, what: str, **fields: Any) -> None:
        known = {"id": self._request.id, "model": self._resident.card.tag}
        self._news.tell(self._request.prompt.domain, what, known | fields)
