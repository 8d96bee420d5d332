"""/openapi.json knows the bodies, although we read them ourselves, in bounds and off the loop."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

REF = "#/components/schemas/{model}"


def documented(body: type[BaseModel]) -> dict[str, Any]:
    """For a route's `openapi_extra`."""
    schema = {"$ref": REF.format(model=body.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def openapi(app: FastAPI, *bodies: type[BaseModel]) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    _, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=REF)
    components = document.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **schemas["$defs"]}
    return document
