#!/usr/bin/env python3
"""A legacy MCP server over stdio that misbehaves on demand. Every line that reaches it is appended to the file LOG."""
import json
import os
import subprocess
import sys
import time

log = open(os.environ["LOG"], "a", encoding="utf-8") if "LOG" in os.environ else None


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def call(name, arguments):
    if name == "pid":
        return text(str(os.getpid()))
    if name == "env":
        return text(json.dumps(dict(os.environ)))
    if name == "delete_function":
        return text(f"deleted by {os.environ.get('WHO')} with {json.dumps(arguments)}")
    if name == "die":
        os._exit(3)
    if name == "noise":
        sys.stdout.write("this is no message\n{\"half\":\n\n[]\n")
        sys.stderr.write("a line on standard error\n")
        send({"jsonrpc": "2.0", "id": "nobody", "result": {}})
        send({"jsonrpc": "2.0", "method": "notifications/unknown"})
        send({"jsonrpc": "2.0", "id": "ask", "method": "sampling/createMessage", "params": {}})
        return text("noise made")
    if name == "spawn":
        child = subprocess.Popen(["sleep", "600"])
        return text(str(child.pid))
    if name == "sleep":
        time.sleep(arguments.get("s", 60))
        return text("slept")
    return text(json.dumps(arguments))


TOOLS = ["delete_function", "die", "echo", "env", "noise", "pid", "sleep", "spawn"]

if os.environ.get("CRASH") == "1":
    sys.exit(5)
for line in sys.stdin:
    if log:
        log.write(line)
        log.flush()
    message = json.loads(line)
    method, identity = message.get("method"), message.get("id")
    if identity is None or method is None:
        continue
    if method == "initialize":
        result = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "scripted", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    elif method == "tools/call":
        params = message["params"]
        result = call(params["name"], params.get("arguments", {}))
    else:
        send({"jsonrpc": "2.0", "id": identity, "error": {"code": -32601, "message": "Method not found"}})
        continue
    send({"jsonrpc": "2.0", "id": identity, "result": result})
