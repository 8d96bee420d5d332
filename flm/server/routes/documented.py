"""/openapi.json knows the bodies, although we read them ourselves, in bounds and off the loop."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

REF = "#/components/schemas/{model}"


def documented(*bodies: type[BaseModel]) -> dict[str, Any]:
    """For a route's `openapi_extra`: it takes one of these."""
    refs = [{"$ref": REF.format(model=body.__name__)} for body in bodies]
    schema: dict[str, Any] = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def query(name: str, description: str) -> dict[str, Any]:
    """A parameter in the address, that may be left out."""
    text = {"type": "string"}
    return {
        "name": name,
        "in": "query",
        "required": False,
        "schema": text,
        "description": description,
    }


def openapi(app: FastAPI, *bodies: type[BaseModel]) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    _, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=REF)
    components = document.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **schemas["$defs"]}
    return document
