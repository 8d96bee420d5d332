"""The volatility map counts what changed in a system prompt or its tools, by whose it is."""

from flm.prefix import volatility
from flm.prefix.changes import Change
from tests.pure.explained import chat, reader, system, user

RULES = "Be brief. Use what the tools say, and say so when you do not know the answer. " * 2
SHIP = "You know all about ships and the sea, and nothing else. " * 4


def clocked(second: int) -> str:
    return f"{RULES}It is 09:41:{second:02}. {RULES}"


def test_what_changes_is_counted_among_all_requests_of_its_kind() -> None:
    here = reader("chatml")
    for second in (1, 2, 2, 3, 4, 1):
        here.send(chat(system(clocked(second)), user("Why?")))
        here.send(chat(system(SHIP), user("Well?")))
    [row] = here.volatility.report("")
    assert (row.place, row.change) == ("messages[0].content", Change.TIME)
    assert (row.times, row.requests) == (3, 6), "a head that was seen before has not changed"
    assert clocked(4)[row.offset - 1 :].startswith("04")
    assert "time" in row.advice


def test_a_turn_counts_as_a_request_and_no_change() -> None:
    here = reader("chatml")
    for second in (1, 2):
        here.send(chat(system(clocked(second)), user("Why?")))
        here.send(chat(system(clocked(second)), user("Why not?")))
    [row] = here.volatility.report("")
    assert (row.times, row.requests) == (1, 4)


def test_two_kinds_of_change_are_two_rows_the_most_frequent_first() -> None:
    here = reader("chatml")
    for second, name in ((1, "Ann"), (2, "Ann"), (3, "Ann"), (3, "Bob")):
        here.send(chat(system(f"{clocked(second)}Talk to {name}. {RULES}"), user("Why?")))
    rows = here.volatility.report("")
    assert [(row.change, row.times) for row in rows] == [(Change.TIME, 2), (Change.OTHER, 1)]


def test_one_domain_sees_nothing_of_another_and_is_forgotten_alone() -> None:
    here = reader("chatml")
    for second in (1, 2):
        for domain in ("alice", "bob"):
            here.send(chat(system(clocked(second)), user("Why?")), domain)
    assert [row.times for row in here.volatility.report("alice")] == [1]
    here.volatility.forget("alice")
    assert here.volatility.report("alice") == []
    assert [row.times for row in here.volatility.report("bob")] == [1]


def test_a_chat_without_system_and_tools_is_not_counted() -> None:
    here = reader("chatml")
    here.send(chat(user("Why?")))
    assert not here.volatility._lineages


def test_memory_is_bounded() -> None:
    here = reader("chatml")
    for number in range(volatility.LINEAGES_MAX + 9):
        here.send(chat(system(f"{number} {SHIP * (number % 3)} {number}"), user("Why?")))
    assert len(here.volatility._lineages) <= volatility.LINEAGES_MAX
    for second in range(3 * volatility.HEADS_MAX):
        here.send(chat(system(clocked(second)), user("Why?")))
    assert max(len(one.heads) for one in here.volatility._lineages) == volatility.HEADS_MAX
    [row] = [row for row in here.volatility.report("") if row.change is Change.TIME]
    assert row.times == 3 * volatility.HEADS_MAX - 1
