"""The engine's thread answers at once, sleeps without work, and leaves no client hanging."""

from collections.abc import Iterator
from dataclasses import replace
from threading import Event as Flag

import pytest

from flm.core.event import Event, Failed, Finished, FinishReason, Generated
from flm.core.request import Priority, Request
from flm.engine.engine import Engine
from flm.engine.thread import EngineThread
from flm.errors import DeviceFailed, ModelLoading, PromptTooLong, QueueFull
from tests.engine.rig import Rig, prompt_of, request_of, some_tokens

PATIENCE_S = 20
HEAD, TAIL = some_tokens(1, 40), some_tokens(2, 30)


class Client:
    """Listens to one request."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = Flag()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Finished | Failed):
            self.ended.set()

    def ending(self) -> Finished | Failed:
        assert self.ended.wait(PATIENCE_S), "left hanging"
        last = self.events[-1]
        assert isinstance(last, Finished | Failed)
        return last

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self.events if isinstance(event, Generated)]


class Gate:
    """Holds the device in the middle of a pass, when shut."""

    def __init__(self) -> None:
        self.open, self.reached = Flag(), Flag()
        self.open.set()

    def __call__(self) -> None:
        self.reached.set()
        assert self.open.wait(PATIENCE_S)

    def shut(self) -> None:
        self.open.clear()
        self.reached.clear()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def rig(tmp_path, gate) -> Rig:
    return Rig(tmp_path, lanes=2, queue_max=2, during=gate)


@pytest.fixture
def thread(rig, gate) -> Iterator[EngineThread]:
    thread = EngineThread(rig.engine)
    yield thread
    gate.open.set()
    thread.close()
    rig.engine.check()


def ask(thread: EngineThread, name: str, tokens=HEAD, **params) -> Client:
    client = Client()
    thread.submit(request_of(name, tokens, **params), client)
    return client


def test_a_listener_hears_its_own_request_to_the_end(thread, tmp_path) -> None:
    alone = Rig(tmp_path)
    alone.run(request_of("a", HEAD, max_tokens=9))
    a, b = ask(thread, "a", max_tokens=9), ask(thread, "b", TAIL)
    assert a.ending() == a.events[-1]
    assert b.ending()
    assert a.tokens == alone.tokens("a")
    assert {event.request_id for event in a.events} == {"a"}
    assert thread.idle


def test_a_refusal_comes_at_once_and_tells_the_caller(thread, gate) -> None:
    gate.shut()
    clients = [ask(thread, "first")]
    assert gate.reached.wait(PATIENCE_S)
    clients += [ask(thread, f"r{index}") for index in range(3)]  # one lane, two places in the queue
    with pytest.raises(QueueFull):
        ask(thread, "too many")
    with pytest.raises(PromptTooLong):
        ask(thread, "too long", some_tokens(1, 256))
    assert (thread.running, thread.waiting, thread.idle) == (1, 3, False)
    gate.open.set()
    assert all(client.ending() for client in clients)
    assert ask(thread, "again").ending()


def test_what_is_submitted_is_looked_through_once(
    thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever submits it, who is told; a prompt may have 100,000 tokens."""
    looked: list[str] = []
    validate = Engine.validate

    def counting(engine: Engine, request: Request) -> None:
        looked.append(request.id)
        validate(engine, request)

    monkeypatch.setattr(Engine, "validate", counting)
    assert ask(thread, "a").ending()
    assert looked == ["a"]


def test_a_cancel_ends_the_pass_that_only_it_is_in(thread, gate, rig) -> None:
    gate.shut()
    client = ask(thread, "a", prompt_of(HEAD, TAIL))
    assert gate.reached.wait(PATIENCE_S)
    thread.cancel("a")
    gate.open.set()
    ending = client.ending()
    assert isinstance(ending, Finished)
    assert ending.reason is FinishReason.CANCELLED
    assert len(rig.steps) == 1
    assert ask(thread, "b", prompt_of(HEAD, TAIL)).ending()


def test_who_asks_and_leaves_ends_nothing(thread, gate) -> None:
    gate.shut()
    client = ask(thread, "a")
    assert gate.reached.wait(PATIENCE_S)
    left, stays = thread.ask(lambda engine: 1), thread.ask(lambda engine: 2)
    assert left.cancel()
    gate.open.set()
    assert stays.result(PATIENCE_S) == 2
    assert client.ending()
    assert ask(thread, "b").ending()


def test_a_waiting_request_is_cancelled_while_another_runs(thread, gate) -> None:
    gate.shut()
    running = [ask(thread, "a", max_tokens=9)]
    assert gate.reached.wait(PATIENCE_S)
    running.append(ask(thread, "b", max_tokens=9))
    waiting = ask(thread, "c")
    thread.cancel("c")
    gate.open.set()
    ending = waiting.ending()
    assert isinstance(ending, Finished)
    assert (ending.reason, len(waiting.events)) == (FinishReason.CANCELLED, 1)
    assert [len(client.tokens) for client in running if client.ending()] == [9, 9]


def test_without_work_the_engine_is_left_alone(rig, thread, monkeypatch) -> None:
    counted = []
    step = rig.engine.step
    monkeypatch.setattr(rig.engine, "step", lambda: counted.append(1) or step())
    for name in "ab":
        assert ask(thread, name, some_tokens(ord(name), 16), max_tokens=1).ending()
    assert len(counted) == 4, "two admissions and two passes"


def test_a_listener_that_raises_costs_only_its_own_request(thread, rig) -> None:
    def gone(event: Event) -> None:
        raise RuntimeError("the client is gone")

    thread.submit(request_of("a", HEAD, max_tokens=200), gone)
    assert isinstance(ask(thread, "b", TAIL).ending(), Finished)
    assert thread.idle
    assert sum(not step.prefill for step in rig.steps) < 20


@pytest.mark.parametrize("where", ["lease", "came", "fetch"])
def test_a_bug_fails_its_request_and_the_thread_lives(thread, rig, monkeypatch, where) -> None:
    def bug(*what, **how) -> None:
        raise AssertionError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(rig.cache, where, bug)
        ending = ask(thread, "a").ending()
    assert isinstance(ending, Failed)
    assert str(ending.error) == "a bug"
    assert isinstance(ask(thread, "b").ending(), Finished)
    thread.ask(Engine.check).result(PATIENCE_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_even_the_end_of_the_thread_leaves_none_hanging(rig, monkeypatch) -> None:
    thread = EngineThread(rig.engine)

    asked = []

    def bug() -> None:
        asked.append(thread.ask(lambda engine: 1))
        raise AssertionError("a bug without end")

    monkeypatch.setattr(rig.engine, "step", bug)
    monkeypatch.setattr(rig.engine, "abandon", lambda error: None)
    ending = ask(thread, "a").ending()
    assert isinstance(ending, Failed)
    assert "restart flm" in ending.error.fix
    assert isinstance(asked[0].exception(timeout=PATIENCE_S), DeviceFailed)
    with pytest.raises(ModelLoading):
        ask(thread, "b")
    thread.close()


def test_close_ends_all_soon_and_takes_no_more(rig, gate, monkeypatch) -> None:
    thread = EngineThread(rig.engine)
    gate.shut()
    clients = [ask(thread, "a", max_tokens=200)]
    assert gate.reached.wait(PATIENCE_S)
    clients += [ask(thread, name, max_tokens=200) for name in "bc"]
    interrupt = rig.engine.interrupt
    monkeypatch.setattr(rig.engine, "interrupt", lambda name: (interrupt(name), gate.open.set()))
    thread.close()
    assert all(isinstance(client.ending(), Finished) for client in clients)
    assert {client.ending().reason for client in clients} == {FinishReason.CANCELLED}
    assert not thread._thread.is_alive()
    with pytest.raises(ModelLoading):
        ask(thread, "d")
    rig.engine.check()


def test_close_tells_those_whose_work_had_not_begun(rig) -> None:
    thread = EngineThread(rig.engine)
    idle = [Client() for _ in range(3)]
    for number, client in enumerate(idle):
        request = request_of(f"idle {number}", HEAD, max_tokens=0)
        thread.submit(replace(request, priority=Priority.IDLE), client)
    thread.close()
    assert all(isinstance(client.ending(), Finished) for client in idle)


def test_a_queue_that_is_full_after_all_refuses_and_lives(thread, gate, rig, monkeypatch) -> None:
    """What room there is may be less than it seemed while a step ran."""
    gate.shut()
    first = ask(thread, "first")
    assert gate.reached.wait(PATIENCE_S)
    monkeypatch.setattr(type(rig.engine), "room", property(lambda engine: 9))
    refused = [ask(thread, f"r{index}") for index in range(3)]
    monkeypatch.undo()
    full = rig.engine.queue_full
    monkeypatch.setattr(rig.engine, "submit", lambda request: (_ for _ in ()).throw(full()))
    gate.open.set()
    assert isinstance(first.ending(), Finished)
    endings = [client.ending() for client in refused]
    assert all(
        isinstance(ending, Failed) and isinstance(ending.error, QueueFull) for ending in endings
    )
    monkeypatch.undo()
    assert isinstance(ask(thread, "again").ending(), Finished)
