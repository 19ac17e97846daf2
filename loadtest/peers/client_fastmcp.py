"""Modern-first HTTP client: FastMCP 4 (server/discover first, initialize as the fallback).

usage: client_fastmcp.py URL TOKEN (list | call NAME JSON_ARGS)
"""

import asyncio
import json
import os
import sys

from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp import MCPError
from mcp.shared._httpx_utils import create_mcp_http_client


class HttpFailure(Exception):
    """An HTTP error answer without a JSON-RPC error in it."""


def tap(session, seen):
    """Keep every raw result in `seen`: the typed models drop the fields they do not know."""
    dispatcher = session._dispatcher
    send = dispatcher.send_raw_request

    async def recording_send(method, params, opts=None, **kwargs):
        result = await send(method, params, opts, **kwargs)
        seen.append((method, result))
        return result

    dispatcher.send_raw_request = recording_send


def is_protocol_error(body):
    try:
        return isinstance(json.loads(body)["error"]["code"], int)
    except (ValueError, KeyError, TypeError):
        return False


def watched_client(failures):
    """Note bare HTTP failures: the SDK turns them into made-up JSON-RPC errors (-32603, -32601)."""

    async def watch(response):
        if response.status_code >= 400 and response.request.method == "POST":
            body = await response.aread()
            if not is_protocol_error(body):
                failures.append(f"HTTP {response.status_code}: {body[:200]!r}")

    def factory(headers=None, timeout=None, auth=None, **_):
        client = create_mcp_http_client(headers=headers, timeout=timeout, auth=auth)
        client.event_hooks["response"] = [watch]
        return client

    return factory


async def run(url, token, verb, name=None, arguments="{}"):
    failures = []
    transport = StreamableHttpTransport(
        url, auth=token or None, httpx_client_factory=watched_client(failures)
    )
    mode = os.environ.get("MCP_ERA", "auto")  # auto | legacy | 2026-07-28
    try:
        async with Client(transport, mode=mode) as client:
            failures.clear()  # of the discover probe, when the server is legacy
            seen = []
            tap(client.session, seen)
            print(f"negotiated {client.protocol_version}", file=sys.stderr)
            if verb == "list":
                await client.list_tools()
                return {"tools": [t for m, r in seen if m == "tools/list" for t in r["tools"]]}
            await client.call_tool_mcp(name, json.loads(arguments))
            return [r for m, r in seen if m == "tools/call"][-1]
    except MCPError:
        if failures:
            raise HttpFailure("; ".join(failures)) from None
        raise


def main(argv):
    shape = (argv[2:3], len(argv))
    if shape != (["list"], 3) and shape not in ((["call"], 4), (["call"], 5)):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        output = asyncio.run(run(*argv))
    except MCPError as failure:
        error = {"code": failure.code, "message": failure.message}
        if failure.data is not None:
            error["data"] = failure.data
        output = {"error": error}
    except Exception as failure:
        print(f"{type(failure).__name__}: {failure}", file=sys.stderr)
        return 1
    print(json.dumps(output, ensure_ascii=False, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
