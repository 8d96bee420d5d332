"""How much of each API's specification is done, by llm-comply: `python -m bench.comply`.

The words of the model are scripted (tests/server/comply.py); all else is the server as it is, and
what it serves is tiny, of random weights, and sees.
"""

from importlib.metadata import version

from bench.rows import keep
from flm import console
from tests.server.comply import FORMATS, comply, spoken


def main() -> None:
    console.configure(level="error")
    with spoken() as server:
        for format in FORMATS:
            results = comply(format, server)
            keep(
                "comply",
                f"llm-comply {version('llm-comply')} {format}",
                passed=sum(each.status.value == "passed" for each in results),
                of=len(results),
                left=[each.id for each in results if each.status.value != "passed"],
                advice=[f"{each.id}: {told}" for each in results for told in each.warnings],
                words="scripted",
            )


if __name__ == "__main__":
    main()
