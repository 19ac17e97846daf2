"""A client of the matrix: FastMCP 4, which asks for the modern era first.

usage: matrix_fastmcp.py URL TOKEN PLAN

The plan has a member for each action to try; see loadtest/src/matrix/plan.rs. Each action has a connection of its own
and a time limit. Prints one line of JSON, as matrix_actions.mjs does. FastMCP has no subscription of its own, so
`subscribe` uses the session of the SDK that it is built on.
"""

import asyncio
import contextlib
import json
import sys
import time

from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp import MCPError
from mcp.client.subscriptions import listen

ACTION_S = 10
CANCEL_S = 1
TOUCHES = 3
MODERN = "2026-07-28"


class Mismatch(Exception):
    """What came is not what the plan expects."""


class Refused(Exception):
    """The tool, or the acknowledgement of a subscription, says no."""


def check(holds, message):
    if not holds:
        raise Mismatch(message)


async def call(client, plan, progress=None):
    result = await client.call_tool_mcp(plan["tool"], plan.get("arguments", {}), progress_handler=progress)
    text = "\n".join(getattr(block, "text", f"<{block.type}>") for block in result.content)
    if result.is_error:
        raise Refused(text)
    return text


async def list_tools(client, plan, _):
    names = {tool.name for tool in await client.list_tools()}
    missing = [name for name in plan["expect"] if name not in names]
    check(not missing, f"not listed: {', '.join(missing)}")
    return f"{len(names)} tools"


async def call_tool(client, plan, _):
    text = await call(client, plan)
    check(plan["text"] in text, f"unexpected text: {text}")
    return text[:60]


async def progress(client, plan, _):
    seen = []

    async def note(value, total, message):
        seen.append(value)

    await call(client, plan, note)
    seen = list(seen)
    check(len(seen) >= 2, f"{len(seen)} progress notifications before the result")
    check(all(a < b for a, b in zip(seen, seen[1:])), f"progress does not rise: {seen}")
    return f"progress {seen}"


async def cancel(client, plan, _):
    async def count():
        return int(await call(client, plan["count"])) if "count" in plan else 0

    before = await count()
    slow = asyncio.create_task(call(client, plan))
    await asyncio.sleep(plan["after_ms"] / 1000)
    aborted = time.monotonic()
    check(slow.cancel(), "the call had already ended")
    with contextlib.suppress(asyncio.CancelledError, MCPError):
        check(False, f"it was answered: {await slow}")
    ended = time.monotonic() - aborted
    check(ended <= CANCEL_S, f"the call ended {ended:.1f} s after it was cancelled")
    text = await call(client, plan["then"])
    check(plan["then"]["text"] in text, f"the next call answers: {text}")
    if "count" not in plan:
        return "the call ended, the next one works"
    for _ in range(50):
        if await count() > before:
            return "the server noticed"
        await asyncio.sleep(0.1)
    raise Mismatch("the server did not notice")


async def elicit(client, plan, asked):
    text = await call(client, plan)
    check(len(asked) == 1, f"the handler was called {len(asked)} times")
    fields = list(asked[0].requested_schema.get("properties", {}))
    check(all(field in fields for field in plan["fields"]), f"the form asked for {', '.join(fields)}")
    check(plan["text"] in text, f"unexpected text: {text}")
    return " ".join(text[:60].split())


@contextlib.asynccontextmanager
async def subscribed(client, uri, updates):
    if client.protocol_version != MODERN:
        await client.session.subscribe_resource(uri)
        yield
        return
    async with listen(client.session, resource_subscriptions=[uri]) as subscription:
        honoured = subscription.honored.resource_subscriptions or []
        if uri not in honoured:
            raise Refused(f"not honoured: {honoured}")

        async def follow():
            async for event in subscription:
                updates.put_nowait(str(event.uri))

        following = asyncio.create_task(follow())
        try:
            yield
        finally:
            following.cancel()


async def subscribe(client, plan, _):
    updates = client.updates
    async with subscribed(client, plan["uri"], updates):
        for tries in range(TOUCHES):
            # The legacy era's GET stream may open after the subscription was answered.
            await asyncio.sleep(0.5)
            text = await call(client, plan["touch"])
            if plan["touch"]["text"] not in text:
                text = await call(client, plan["touch"])
            check(plan["touch"]["text"] in text, f"the update was not made: {text}")
            with contextlib.suppress(asyncio.TimeoutError):
                while await asyncio.wait_for(updates.get(), 1.5) != plan["uri"]:
                    pass
                return f"updated after {tries + 1} touches"
    raise Mismatch("subscribed, but no update arrived")


async def read(client, plan, _):
    text = "\n".join(content.text for content in await client.read_resource(plan["uri"]))
    check(plan["text"] in text, f"unexpected content: {text[:80]}")
    return " ".join(text[:60].split())


async def prompt(client, plan, _):
    result = await client.get_prompt(plan["name"], plan.get("arguments"))
    text = "\n".join(message.content.text for message in result.messages)
    check(plan["text"] in text, f"unexpected text: {text}")
    return text[:60]


ACTIONS = {
    "list": list_tools,
    "call": call_tool,
    "progress": progress,
    "cancel": cancel,
    "elicit": elicit,
    "subscribe": subscribe,
    "read": read,
    "prompt": prompt,
}


def said(failure):
    """The innermost failure: a task group wraps it."""
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    return failure


async def attempt(url, token, act, plan):
    asked, updates, era = [], asyncio.Queue(), None

    async def answer(message, response_type, params, context):
        asked.append(params)
        return plan["answer"]

    async def note(message):
        if getattr(message, "method", None) == "notifications/resources/updated":
            updates.put_nowait(str(message.params.uri))

    async def work():
        nonlocal era
        transport = StreamableHttpTransport(url, auth=token or None)
        async with Client(transport, elicitation_handler=answer, message_handler=note) as client:
            client.updates, era = updates, client.protocol_version
            return {"ok": True, "detail": await act(client, plan, asked)}

    try:
        outcome = await asyncio.wait_for(work(), ACTION_S)
    except asyncio.TimeoutError:
        outcome = {"ok": False, "timeout": True, "detail": f"no end within {ACTION_S} s"}
    except Mismatch as failure:
        outcome = {"ok": False, "detail": str(failure)}
    except Exception as failure:
        failure = said(failure)
        outcome = {"ok": False, "detail": str(failure)}
        if not isinstance(failure, Mismatch):
            outcome["error"] = {"code": getattr(failure, "code", None), "message": str(failure)}
    return outcome | {"era": era}


async def main(url, token, plan):
    outcomes = {}
    for name, part in json.loads(plan).items():
        outcomes[name] = await attempt(url, token, ACTIONS[name], part)
    print(json.dumps(outcomes, separators=(",", ":")))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
