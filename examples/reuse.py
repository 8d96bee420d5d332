"""See a prompt being reused: the second question to the same long instructions starts at once.

flm serve smollm2:135m &
python examples/reuse.py [http://127.0.0.1:52625/v1]
"""

import json
import sys
import time
import urllib.request

base = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:52625/v1"
instructions = "You answer in one short sentence. " + "Be kind, exact and brief. " * 250

with urllib.request.urlopen(f"{base}/models") as response:
    model = json.load(response)["data"][0]["id"]
for question in ("What is a river?", "What is a bridge?", "What is a boat?"):
    messages = [
        {"role": "system", "content": instructions},
        {"role": "user", "content": question},
    ]
    body = {"model": model, "messages": messages, "max_tokens": 24}
    request = urllib.request.Request(
        f"{base}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    start = time.perf_counter()
    with urllib.request.urlopen(request) as response:
        reply = json.load(response)
    took, usage = time.perf_counter() - start, reply["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    print(f"{question:20} {took:5.2f} s, {cached:,} of {usage['prompt_tokens']:,} tokens kept")
    print("   ", reply["choices"][0]["message"]["content"].strip())
