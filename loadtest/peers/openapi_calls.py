"""Calls tools by what an OpenAPI document says, and by nothing else.

Standard input: {"document", "token", "arguments": {tool: arguments}, "failures": [[path, body]]}.
Standard output: {"calls": {tool: answer}, "failures": [[exit code of curl, answer]]}.
"""

import json
import subprocess
import sys

from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

asked = json.load(sys.stdin)
document = asked["document"]
assert document["openapi"].startswith("3.1.")
validate(document, cls=OpenAPIV31SpecValidator)


def curl(path, body):
    server = document["servers"][0]["url"]
    words = ["curl", "-sS", "--fail-with-body", "-X", "POST", server + path, "-d", json.dumps(body)]
    words += ["-H", "content-type: application/json", "-H", f"authorization: Bearer {asked['token']}"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return ended.returncode, json.loads(ended.stdout)


def conforms(value, schema):
    """As the document says: references lead into it."""
    Draft202012Validator({**schema, "components": document["components"]}).validate(value)


calls = {}
for path, item in document["paths"].items():
    operation = item["post"]
    arguments = asked["arguments"][operation["operationId"]]
    conforms(arguments, operation["requestBody"]["content"]["application/json"]["schema"])
    code, answer = curl(path, arguments)
    assert code == 0, (path, answer)
    conforms(answer, operation["responses"]["200"]["content"]["application/json"]["schema"])
    calls[operation["operationId"]] = answer
print(json.dumps({"calls": calls, "failures": [curl(path, body) for path, body in asked["failures"]]}))
