"""The server: reads requests from stdin, writes to stdout, and answers in threads that hold a store open."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import logging
import sys
from typing import Any

import jsonschema
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from sacristan.runs.documents.mcp.tools import NOTICE, TOOLS, Tool, answer_text, error_text
from sacristan.runs.documents.schemas import arguments_schema
from sacristan.runs.errors import RunsError
from sacristan.runs.stores.opening import open_store
from sacristan.runs.stores.pool import StorePool
from sacristan.runs.stores.store import Store

__all__ = ["TIMEOUT_S", "serve"]

TIMEOUT_S = 30.0
_INSTRUCTIONS = f"Past runs of experiments, read only. {NOTICE}"
_NUM_THREADS = 2
_log = logging.getLogger(__name__)


def serve(where: str, timeout_s: float = TIMEOUT_S) -> None:
    """Answer requests until stdin is closed; a question that takes longer than `timeout_s` seconds gets an error.

    Raises StoreError if the store cannot be opened.
    """
    open_again = functools.partial(open_store, where, is_read_only=True)
    with contextlib.redirect_stdout(sys.stderr), open_again():  # stdout carries the protocol only
        pass
    asyncio.run(_serve(StorePool(open_again, _NUM_THREADS), timeout_s))


async def _serve(pool: StorePool, timeout_s: float) -> None:
    async def call_tool(_: ServerRequestContext, request: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            text = await _answer(pool, request.name, request.arguments or {}, timeout_s)
        except RunsError as error:
            return _result(error_text(error), is_error=True)
        except Exception as error:  # a record may be damaged in a way that nobody thought of
            _log.exception("%s failed", request.name)
            return _result(error_text(RuntimeError(f"{request.name} failed: {error!r}")), is_error=True)
        return _result(text)

    async def list_tools(*_: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(name, tool) for name, tool in TOOLS.items()])

    server = Server(
        "sacristan",
        version=importlib.metadata.version("sacristan"),
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())
    pool.is_closed = True


async def _answer(pool: StorePool, name: str, words: dict[str, Any], timeout_s: float) -> str:
    if name not in TOOLS:
        raise RunsError(f"got the tool {name!r}; there are: {', '.join(TOOLS)}")
    tool = TOOLS[name]
    validator = jsonschema.Draft202012Validator(arguments_schema(tool.arguments))
    if (fault := jsonschema.exceptions.best_match(validator.iter_errors(words))) is not None:
        raise RunsError(f"{name}: {'.'.join(map(str, fault.absolute_path)) or 'arguments'}: {fault.message}")

    # JSON Schema takes 5.0 for an integer.
    numbers = {key: int(value) for key, value in words.items() if isinstance(value, float)}

    def ask(store: Store) -> str:
        answer = tool.answer(store, {**words, **numbers})
        return answer_text(tool.command, answer.document, answer.notes)

    return await pool.ask_within(ask, timeout_s)


def _described(name: str, tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    schema = arguments_schema(tool.arguments)
    return types.Tool(name=name, description=tool.description, input_schema=schema, annotations=hints)


def _result(text: str, *, is_error: bool = False) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(text=NOTICE), types.TextContent(text=text)]
    return types.CallToolResult(content=content, is_error=is_error)
