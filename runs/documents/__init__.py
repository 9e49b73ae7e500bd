"""JSON for programs: the documents that `--json` prints; their schemas, from typed dicts and dataclasses.

The text of a key is a note in its annotation, or that of its attribute in a docstring. A schema leaves objects open,
because later versions may add keys.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

__all__ = [
    "VERSION",
    "Others",
    "arguments_schema",
    "attribute_texts",
    "reference_page",
    "schema_id",
    "schema_of",
    "summary_of",
]

# Counted up when a key is removed or changes its meaning, in any document.
VERSION = 1
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_NUMBER = {
    "description": "A number, or the text of one that JSON lacks.",
    "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
}
_SIMPLE: dict[Any, dict[str, Any]] = {
    Any: {},
    bool: {"type": "boolean"},
    datetime: {"type": "string"},
    float: {"$ref": "#/$defs/number"},
    int: {"type": "integer"},
    Path: {"type": "string"},
    str: {"type": "string"},
    types.NoneType: {"type": "null"},
}
_ATTRIBUTE = re.compile(r"^ {4}(?P<names>\w[\w, ]*): (?P<text>.+(?:\n {6,}.+)*)", re.MULTILINE)
_HEAD = f"""# Keys of the JSON

Version {VERSION}. `sacristan schema` prints this page, and with the name of a command its JSON Schema. A number
may be one of the texts `"NaN"`, `"Infinity"` and `"-Infinity"`.
"""


@dataclasses.dataclass(frozen=True)
class Others:
    """Marks a typed dict that has further keys: `Annotated[Kind, Others("Values by column.")]`."""

    text: str  # their meaning


def schema_id(name: str) -> str:
    """Return the id of a command's schema, which contains the version."""
    return f"urn:sacristan:json:{VERSION}:{name}"


def schema_of(name: str, kind: Any) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the document that a command prints."""
    definitions: dict[str, Any] = {}
    body = _of(kind, definitions)
    head = {"$schema": _DRAFT, "$id": schema_id(name), "title": f"sacristan {name} --json"}
    return {**head, **body, **({"$defs": dict(sorted(definitions.items()))} if definitions else {})}


def arguments_schema(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of a typed dict of simple types and lists; it allows no other arguments."""
    return {**_object(kind, {}), "additionalProperties": False}


def attribute_texts(kind: type) -> dict[str, str]:
    """Return the text of each attribute in the docstring of a class."""
    _, _, section = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")
    return {
        name.strip(): " ".join(match["text"].split())
        for match in _ATTRIBUTE.finditer(section)
        for name in match["names"].split(",")
    }


def summary_of(kind: type) -> str:
    """Return the first paragraph of a class's docstring."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def _of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; add the schemas of its classes to the definitions."""
    if get_origin(kind) is Annotated:  # whose notes may have no hash
        return _annotated(get_args(kind), definitions)
    if kind in _SIMPLE:
        if kind is float:
            definitions["number"] = _NUMBER
        return _SIMPLE[kind]
    if is_typeddict(kind) or dataclasses.is_dataclass(kind):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # it may contain itself
            definitions[kind.__name__] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    return _generic(get_origin(kind), get_args(kind), definitions)


def _generic(origin: Any, arguments: Sequence[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(one, definitions) for one in arguments]}
    if origin is tuple and arguments[-1] is not ...:
        items = [_of(one, definitions) for one in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of(arguments[1], definitions)}
    return {"type": "array", "items": _of(arguments[0], definitions)}


def _annotated(arguments: Sequence[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    kind, *notes = arguments
    schema = dict(_of(kind, definitions))
    for note in notes:
        if isinstance(note, Others):
            schema["additionalProperties"] = {"description": note.text}
        else:
            schema |= note if isinstance(note, Mapping) else {"description": note}
    return schema


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    texts, properties, required = attribute_texts(kind), {}, []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        is_optional = get_origin(hint) is NotRequired
        schema = _of(get_args(hint)[0] if is_optional else hint, definitions)
        properties[name] = {**schema, "description": texts[name]} if name in texts else schema
        required += [] if is_optional else [name]
    return {"type": "object", "description": summary_of(kind), "properties": properties, "required": required}


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
