"""Ask a server about a picture, with nothing but Python's own library.

flm serve qwen3.5:0.8b &
python examples/picture.py photo.jpg [QUESTION [http://127.0.0.1:52625/v1 [API_KEY]]]
"""

import base64
import json
import mimetypes
import sys
import urllib.error
import urllib.request
from pathlib import Path

photo, question, base, key, *_ = [
    *sys.argv[1:],
    *["photo.jpg", "What is this?", "http://127.0.0.1:52625/v1", "any"][len(sys.argv) - 1 :],
]
kind = mimetypes.guess_type(photo)[0] or "image/png"
url = f"data:{kind};base64,{base64.b64encode(Path(photo).read_bytes()).decode()}"
headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
try:
    with urllib.request.urlopen(urllib.request.Request(f"{base}/models", None, headers)) as models:
        model = json.load(models)["data"][0]["id"]
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": question},
    ]
    body = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": content}]}
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{base}/chat/completions", data, headers)
    with urllib.request.urlopen(request) as response:
        reply = json.load(response)
except urllib.error.HTTPError as error:
    sys.exit(f"{base} answers {error.code}: {error.read().decode()}")
except OSError as error:
    sys.exit(f"No server answers at {base}: {error}. Start one with flm serve, or name its URL.")
print(reply["choices"][0]["message"]["content"].strip())
print(f"({reply['usage']['prompt_tokens']:,} tokens read for it)")
