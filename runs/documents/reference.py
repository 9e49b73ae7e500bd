"""The JSON of all commands as a page of Markdown, generated from its schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sacristan.runs.documents.schemas import VERSION

__all__ = ["reference_page"]

_HEAD = f"""# Keys of the JSON

Version {VERSION}. `sacristan schema` prints this page, and with the name of a command its JSON Schema. A number
may be one of the texts `"NaN"`, `"Infinity"` and `"-Infinity"`.
"""


def reference_page(schemas: Mapping[str, Mapping[str, Any]], reasons_without_json: Mapping[str, str]) -> str:
    """Return the page: the output of each command or why it has no JSON, and the keys of each object once."""
    lines = [_HEAD, "| command | prints |", "| --- | --- |"]
    lines += [f"| `{name}` | {_type_text(schema)} |" for name, schema in schemas.items()]
    lines += ["", "| command | why it has no `--json` |", "| --- | --- |"]
    lines += [f"| `{name}` | {reason} |" for name, reason in reasons_without_json.items()]
    objects: dict[str, Mapping[str, Any]] = {}
    for schema in schemas.values():
        objects |= schema.get("$defs", {})
    objects.pop("number", None)
    for name, definition in sorted(objects.items()):
        lines += ["", *_object_lines(name, definition)]
    return "\n".join(lines) + "\n"


def _object_lines(name: str, definition: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"## {name}", "", definition["description"], "", "| key | type | meaning |", "| --- | --- | --- |")
    for key, schema in definition["properties"].items():
        optional = "" if key in definition["required"] else "; may be missing"
        yield f"| `{key}` | {_type_text({**schema, 'description': ''})}{optional} | {schema['description']} |"


def _type_text(schema: Mapping[str, Any]) -> str:
    """Return a type in words, with links to the objects on the page."""
    if "anyOf" in schema:
        return " or ".join(map(_type_text, schema["anyOf"]))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        others = schema.get("additionalProperties")
        more = f", with further keys: {others['description']}" if others else ""
        return "number" if name == "number" else f"[{name}](#{name.lower()}){more}"
    if "prefixItems" in schema:
        return f"list of {len(schema['prefixItems'])} values"
    if "items" in schema:
        return f"list of {_type_text(schema['items'])}"
    if "additionalProperties" in schema:
        return f"object of {_type_text(schema['additionalProperties'])} by name"
    return schema.get("type") or schema.get("description") or "any value"
