"""Narrows the gateway's OpenAPI document to its models, so that generated requests reach them: narrow.py OUT BASE_URL KEY.

With "broken" as fourth argument it also changes the type of a member of the responses, which the run must then report.
"""

import json
import sys
import urllib.request

out, base, key = sys.argv[1:4]


def get(path):
    request = urllib.request.Request(base + path, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


document = get("/openapi.json")
models = [model["id"] for model in get("/v1/models")["data"]]
schemas = document["components"]["schemas"]
for name in ("CompletionRequest", "TokenizeRequest", "DetokenizeRequest"):
    schemas[name]["properties"]["model"]["enum"] = models
if sys.argv[4:] == ["broken"]:
    schemas["Model"]["properties"]["object"] = {"type": "integer"}
with open(out, "w", encoding="utf-8") as file:
    json.dump(document, file)
