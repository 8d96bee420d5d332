"""POST /tokenize, /detokenize, /apply-template: what a model reads, as llama.cpp and vLLM do."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import ConfigDict

from flm.engine.conversation import Conversations
from flm.engine.residency import Resident
from flm.errors import BadRequest
from flm.server.admission import Admission
from flm.server.apis.bodies import Body, Many, refuse_fields
from flm.server.apis.entries import CHATS
from flm.server.apis.openai import ChatBody
from flm.server.faults import valid
from flm.server.prepare import Preparation
from flm.server.residence.residence import Residence
from flm.server.routes.documented import documented
from flm.server.wire import Json
from flm.text.tokenizer import Tokenizer

# Special tokens are always read as such, and a chat is always one to be answered.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "parse_special": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}


class TokenizeBody(Body):
    """llama.cpp's has `content`, vLLM's `prompt`, which is read after the model's first token
    unless it says otherwise. Both may leave out the model.
    """

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    add_special: bool = False
    add_special_tokens: bool = True
    with_pieces: bool = False
    return_token_strs: bool | None = None

    @property
    def text(self) -> tuple[str, bool]:
        """And whether it comes after a first token."""
        if self.content is not None:
            return self.content, self.add_special
        if self.prompt is not None:
            return self.prompt, self.add_special_tokens
        raise BadRequest("content is missing", fix="send content, prompt or messages")


class DetokenizeBody(Body):
    model_config = ConfigDict(extra="allow")

    model: str | None = None
    tokens: Many[int]


def routes(residence: Residence, admission: Admission, preparation: Preparation) -> APIRouter:
    router = APIRouter(dependencies=[Depends(residence.guest)])

    async def answer(
        request: Request, work: Callable[[dict[str, Any], str | None], dict[str, Any]]
    ) -> Response:
        fields, key = await admission.fields(request), request.state.api_key
        return Json(await admission.admitted(request, partial(work, fields, key)))

    def resident_of(model: str | None) -> Resident:
        return residence.find(model) if model else residence.resident

    def chat(fields: dict[str, Any], key: str | None) -> tuple[Resident, tuple[int, ...]]:
        prepared = preparation.chat(CHATS, residence.usual | fields, key)
        return prepared.resident, prepared.prompts[0][0].request.prompt.tokens

    def tokenized(fields: dict[str, Any], key: str | None) -> dict[str, Any]:
        body = valid(TokenizeBody, fields)
        refuse_fields(body, UNSUPPORTED)
        if "messages" in fields:
            resident, tokens = chat(fields, key)
        else:
            resident = resident_of(body.model)
            text, first = body.text
            tokens = tuple(Conversations(resident).encode(text, first=first))
        return _told(body, tokens, resident)

    def detokenized(fields: dict[str, Any], key: str | None) -> dict[str, Any]:
        body = valid(DetokenizeBody, fields)
        tokenizer = resident_of(body.model).tokenizer
        if not all(0 <= token < tokenizer.vocabulary for token in body.tokens):
            raise BadRequest(
                "tokens has an id outside the vocabulary",
                fix=f"send ids from 0 to {tokenizer.vocabulary - 1}",
                param="tokens",
            )
        text = tokenizer.decode(body.tokens, skip_special=False)
        return {"content": text, "prompt": text}

    def applied(fields: dict[str, Any], key: str | None) -> dict[str, Any]:
        resident, tokens = chat(fields, key)
        return {"prompt": resident.tokenizer.decode(tokens, skip_special=False)}

    @router.post("/tokenize", openapi_extra=documented(TokenizeBody, ChatBody))
    async def tokenize(request: Request) -> Response:
        """The tokens of a text or a chat."""
        return await answer(request, tokenized)

    @router.post("/detokenize", openapi_extra=documented(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        """The text of tokens."""
        return await answer(request, detokenized)

    @router.post("/apply-template", openapi_extra=documented(ChatBody))
    async def apply_template(request: Request) -> Response:
        """The prompt that a model would read of a chat."""
        return await answer(request, applied)

    return router


def _told(body: TokenizeBody, tokens: tuple[int, ...], resident: Resident) -> dict[str, Any]:
    tokenizer = resident.tokenizer
    told: dict[str, Any] = {
        "tokens": tokens,
        "count": len(tokens),
        "max_model_len": resident.context_length,
    }
    if body.with_pieces:
        told["tokens"] = [{"id": token, "piece": _piece(tokenizer, token)} for token in tokens]
    if body.return_token_strs:
        told["token_strs"] = [tokenizer.piece(token) for token in tokens]
    return told


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """A part of a character is its bytes."""
    piece = tokenizer.piece_bytes(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
