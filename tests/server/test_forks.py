"""Where prompts were seen to part, no boundary says so: from the third on, they start there."""

from pathlib import Path

import numpy as np
import pytest

from flm.core.prompt import BoundaryKind
from tests.pure.explained import SOURCES, tool
from tests.server.reported import LAYOUTS, SETTINGS, Servers, say, two_servers, words
from tests.server.test_reports import alike

kinds = pytest.mark.parametrize("kind", LAYOUTS)
TOOLS = [tool(name, words(20, at)) for at, name in enumerate(["read", "write", "find"])]


def parting(servers: Servers, prompts: list[tuple[int, ...]], cached: list[int]) -> None:
    """The rule: what two prompts were seen to share, a third that shares it starts from, if it is
    enough beyond what was kept.
    """
    seen: list[int] = []  # how far each shared with the likest before it
    for at, prompt in enumerate(prompts):
        own = [alike(prompt, other) for other in prompts[:at]]
        forks = [fork for other, fork in enumerate(seen) if fork <= own[other]]
        assert cached[at] > max(forks, default=0) - SETTINGS.prefix_min_gain
        assert cached[at] <= max(own, default=0)
        seen.append(max(own, default=0))


@kinds
def test_sub_agents_whose_task_is_in_the_system_message_share_what_precedes_it(
    tmp_path: Path, kind: str
) -> None:
    """As Hermes delegates: the same tools and rules, then the task, then how to answer."""
    with two_servers(tmp_path, kind) as servers:
        cached, prompts = [], []
        for number in range(5):
            task = f"You are to: {words(30, number)}"
            system = f"{words(300)}\n\n{task}\n\n{words(100, 6)}"
            asked = [say("system", system), say("user", words(10, number))]
            cached.append(servers.chat(asked, tools=TOOLS).cached)
            prompts.append(servers.prompt.tokens)
        shared = min(alike(prompts[0], prompt) for prompt in prompts[1:])
        assert shared > 600
        assert cached[1] >= (shared if kind == "rows" else 0)
        assert min(cached[2:]) >= shared
        parting(servers, prompts, cached)


@kinds
def test_a_sub_agents_own_turns_start_where_it_was(tmp_path: Path, kind: str) -> None:
    """Forks take nothing from what each of them has."""
    with two_servers(tmp_path, kind) as servers:
        chats = [
            [say("system", f"{words(200)} {words(30, n)}"), say("user", words(70, n))]
            for n in range(3)
        ]
        lengths = [0, 0, 0]
        for turn in range(4):
            for number, chat in enumerate(chats):
                read = servers.chat(chat, tools=TOOLS)
                if turn:
                    assert read.cached >= lengths[number] - 4
                lengths[number] = read.length
                chat += [say("assistant", words(9, turn)), say("user", words(70, turn + 3))]


@kinds
def test_system_text_inside_the_first_user_turn_is_shared(tmp_path: Path, kind: str) -> None:
    """As Gemma's template has it: there, a head ends where two questions part."""
    with two_servers(tmp_path, kind, template=SOURCES["system_in_user"]) as servers:
        reads = [
            servers.chat([say("system", words(300)), say("user", f"{n} is what? {words(40, n)}")])
            for n in range(4)
        ]
        assert all(read.cached > 600 for read in reads[1:])


@kinds
def test_user_turns_that_begin_alike_in_such_a_template_are_shared(
    tmp_path: Path, kind: str
) -> None:
    """No system message says where they part."""
    with two_servers(tmp_path, kind, template=SOURCES["system_in_user"]) as servers:
        reads = [
            servers.chat([say("user", f"{words(300)} Now {n}: {words(40, n)}")]) for n in range(4)
        ]
        assert all(read.cached > 600 for read in reads[2:])


def test_a_fork_is_kept_as_one_and_only_with_state(tmp_path: Path) -> None:
    for kind in LAYOUTS:
        (tmp_path / kind).mkdir()
        with two_servers(tmp_path / kind, kind) as servers:
            for number in range(2):
                servers.complete(f"{words(200)} {words(100, number + 3)}")
            slots = servers.house.resident.thread.ask(
                lambda engine: [node.slot.kind for node in engine.cache.slots.values() if node.slot]
            ).result()
            assert slots.count(BoundaryKind.FORK) == (kind == "state")


@kinds
@pytest.mark.parametrize("seed", range(3))
def test_a_clock_is_passed_by_in_the_end_whenever_it_is_read(
    tmp_path: Path, kind: str, seed: int
) -> None:
    """Two times share some of their digits, so that each fork may lie a little elsewhere."""
    rng = np.random.default_rng(seed)
    with two_servers(tmp_path, kind) as servers:
        cached, prompts = [], []
        for _ in range(8):
            hour, minute, second = (int(rng.integers(top)) for top in (24, 60, 60))
            system = f"{words(150, 1)} {hour:02}:{minute:02}:{second:02} {words(150, 2)}"
            cached.append(servers.chat([say("system", system), say("user", "So?")]).cached)
            prompts.append(servers.prompt.tokens)
        parting(servers, prompts, cached)
        assert min(cached[5:]) > 250
