"""The matrix's server on the Python SDK 2.x, over Streamable HTTP: one of everything that the matrix tries.

Dual era; the legacy era has sessions, and no resources/subscribe (the SDK's MCPServer serves updates to the modern
era alone). Prints its URL as the first line.
"""

import asyncio
import os
import socket
from typing import Annotated

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel

RESOURCE = "matrix://note"
cancelled = 0
server = MCPServer("matrix-py", version="1.0.0", log_level="WARNING")


class Who(BaseModel):
    name: str


def ask() -> Elicit[Who]:
    return Elicit("What is your name?", Who)


@server.tool(structured_output=False)
def echo(message: str) -> str:
    """Returns the message"""
    return f"echo: {message}"


@server.tool(structured_output=False)
async def slow(ctx: Context, steps: int = 4, step_ms: int = 100) -> str:
    """Takes its time and reports progress"""
    global cancelled
    try:
        for step in range(1, steps + 1):
            await asyncio.sleep(step_ms / 1000)
            await ctx.report_progress(step, steps, f"step {step}")
    except asyncio.CancelledError:
        cancelled += 1
        raise
    return f"slow: {steps} steps"


@server.tool(structured_output=False)
def elicit(who: Annotated[Who, Resolve(ask)]) -> str:
    """Asks the user for a name"""
    return f"elicited: {who.name}"


@server.tool(structured_output=False)
async def touch(ctx: Context) -> str:
    """Updates matrix://note"""
    await ctx.notify_resource_updated(RESOURCE)
    return "touched"


@server.tool(structured_output=False)
def cancelled_count() -> str:
    """How many slow calls were cancelled"""
    return str(cancelled)


@server.resource(RESOURCE, mime_type="text/plain")
def note() -> str:
    """A note"""
    return "a note"


@server.prompt()
def greet(name: str) -> str:
    """Greets someone"""
    return f"Greet {name}."


def main():
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "0"))))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
