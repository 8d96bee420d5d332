"""Ask a model in this process, without a server: python examples/chat.py [MODEL]"""

import sys

from flm.llm import LLM

with LLM.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2:135m") as llm:
    for delta in llm.stream("Write one sentence about the sea.", max_tokens=60, temperature=0):
        print(delta.text, end="", flush=True)
    print()
