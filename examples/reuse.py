"""See a prompt being reused: the second question to the same long instructions starts at once.

flm serve smollm2:135m &
python examples/reuse.py [http://127.0.0.1:52625/v1 [API_KEY]]
"""

import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any

base = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:52625/v1"
key = sys.argv[2] if len(sys.argv) > 2 else "any"
instructions = "You answer in one short sentence. " + "Be kind, exact and brief. " * 250


def ask(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{base}/{path}", data, headers)
    try:
        with urllib.request.urlopen(request) as response:
            return json.load(response)  # type: ignore[no-any-return]
    except urllib.error.HTTPError as error:
        sys.exit(f"{base} answers {error.code}: {error.read().decode()}")
    except OSError:
        sys.exit(f"No server answers at {base}. Start one with flm serve, or name its URL.")


model = ask("models")["data"][0]["id"]
for question in ("What is a river?", "What is a bridge?", "What is a boat?"):
    messages = [
        {"role": "system", "content": instructions},
        {"role": "user", "content": question},
    ]
    start = time.perf_counter()
    reply = ask("chat/completions", {"model": model, "messages": messages, "max_tokens": 24})
    took, usage = time.perf_counter() - start, reply["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    print(f"{question:20} {took:5.2f} s, {cached:,} of {usage['prompt_tokens']:,} tokens kept")
    print("   ", reply["choices"][0]["message"]["content"].strip())
