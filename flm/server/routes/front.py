"""The front door: at / a page for people's browsers, a greeting for programs.

The page's files lie in page/. Nothing in them is a secret, so they ask for no key: the page
does, before it asks the server for anything.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response

from flm import __version__
from flm.errors import NoSuchPath
from flm.server.wire import Json

FOLDER = Path(__file__).parents[1] / "page"
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # what is pasted into a message
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # no text is ever taken for markup
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    type: str
    etag: str

    def response(self, request: Request) -> Response:
        headers = {**HEADERS, "ETag": self.etag, "Vary": "Accept"}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.type)


def asks_for_page(method: str, path: str, accept: str) -> bool:
    """Whether it is the page that is asked for, or one of its files."""
    at_door = path == "/" and method == "GET" and "text/html" in accept
    return at_door or (path.startswith("/page/") and method in ("GET", "HEAD"))


def routes() -> APIRouter:
    router, files = APIRouter(), dict(_files())

    @router.get("/")
    @router.head("/", include_in_schema=False)
    async def greeting(request: Request) -> Response:
        """That this is flm; a browser gets the page."""
        if asks_for_page(request.method, "/", request.headers.get("accept", "")):
            return files[INDEX].response(request)
        said = {"message": "flm is running", "version": __version__, "openai": "/v1"}
        return Json(said, headers={"Vary": "Accept"})

    @router.get("/page/{name}", include_in_schema=False)
    @router.head("/page/{name}", include_in_schema=False)
    async def file(request: Request, name: str) -> Response:
        if name not in files:
            raise NoSuchPath(f"The page has no file {name!r:.60}", fix="open / again")
        return files[name].response(request)

    return router


def _files() -> Iterator[tuple[str, File]]:
    for path in sorted(FOLDER.iterdir()):
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        yield path.name, File(content, TYPES[path.suffix], etag)
