"""Later sources win, and what cannot be right is refused by name."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from flm.core.sizes import MIB
from flm.engine.plan import Limits
from flm.errors import BadSettings
from flm.models.cards import find
from flm.numerals import duration_s
from flm.settings import Settings, expected, key, load_settings, variable


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def write(text: str, path: str = "flm.toml") -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_flags_win_over_environment_over_file_over_defaults() -> None:
    assert load_settings(environ={}).port == 52625
    write("port = 1\nctx_len = 1024")
    assert load_settings(environ={}).port == 1
    assert load_settings(environ={"FLM_SERVE_PORT": "2"}).port == 2
    settings = load_settings({"port": "3", "threads": None}, environ={"FLM_SERVE_PORT": "2"})
    assert (settings.port, settings.ctx_len, settings.threads) == (3, 1024, None)


def test_the_file_here_wins_over_the_users_and_one_asked_for_over_both() -> None:
    write("lanes = 2", ".config/flm/flm.toml")
    assert load_settings(environ={}).lanes == 2
    write("lanes = 3")
    assert load_settings(environ={}).lanes == 3
    assert load_settings(config=write("lanes = 5", "mine.toml"), environ={}).lanes == 5


def test_every_setting_can_be_written_in_every_place() -> None:
    for field in fields(Settings):
        value = getattr(Settings(), field.name)
        text = str(value)
        if isinstance(value, tuple):
            text, value = "a, b", ("a", "b")
        elif value is None:
            text, value = "700", Path("700") if field.type == Path | None else 700
        from_environment = load_settings(environ={variable(field.name): text})
        from_flags = load_settings({field.name: text}, environ={})
        assert getattr(from_environment, field.name) == getattr(from_flags, field.name) == value
        assert expected(field.name)
        assert field.metadata["help"]


def test_kinds_are_read_as_toml_writes_them() -> None:
    write('model-path = "~/m"\ncors = false\nping-interval-s = 2\napi-key = ["a", "b"]\nq-len = 0')
    settings = load_settings(environ={})
    assert settings.model_path == Path.home() / "m"
    assert settings.cors is False
    assert settings.ping_interval_s == 2.0
    assert settings.api_keys == ("a", "b")
    assert settings.queue_max == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('port = "x"', ["flm.toml: port", "'x'", "a whole number from 1 to 65535"]),
        ("port = 70000", ["port", "70000", "65535"]),
        ("port = true", ["port", "True"]),
        ("lanes = 1.5", ["lanes", "1.5", "whole number"]),
        ('device = "gpu"', ["device", "'gpu'", "one of auto, cpu, npu"]),
        ("cors = 2", ["cors", "2", "1 or 0"]),
        ("api-key = [1]", ["api-key", "[1]", "a list of words"]),
        ("host = 1", ["host", "1", "a word"]),
        ("model-path = 1", ["model-path", "a path"]),
        ("ping-interval-s = nan", ["ping-interval-s", "nan", "from 0.1 to 60"]),
        ("treads = 2", ["treads", "2"]),
        ("[server]\nport = 1", ["server", "not a setting"]),
        ("port =", ["flm.toml is not TOML"]),
    ],
)
def test_a_bad_file_is_refused_naming_key_value_and_kind(text: str, words: list[str]) -> None:
    write(text)
    with pytest.raises(BadSettings) as error:
        load_settings(environ={})
    assert all(word in error.value.message for word in words), error.value.message
    assert error.value.fix


def test_the_place_of_a_bad_value_is_named() -> None:
    with pytest.raises(BadSettings, match=r"FLM_CTX_LEN is '12'.*from 512"):
        load_settings(environ={"FLM_CTX_LEN": "12"})
    with pytest.raises(BadSettings, match="--socket is '0'"):
        load_settings({"connections_max": "0"}, environ={})
    with pytest.raises(BadSettings, match=r"nowhere.toml cannot be read: No such file"):
        load_settings(config=Path("nowhere.toml"), environ={})


def test_a_misspelt_variable_is_refused_and_somebody_elses_is_left_alone() -> None:
    with pytest.raises(BadSettings) as error:
        load_settings(environ={"FLM_CTXLEN": "4096"})
    assert error.value.message == "FLM_CTXLEN=4096 is not a setting"
    assert error.value.fix == "did you mean FLM_CTX_LEN?"
    # FastFlowLM's own, and what Kubernetes sets for a service called flm.
    load_settings(environ={"FLM_CONFIG_PATH": "x.json", "FLM_PORT": "tcp://10.0.0.1:52625"})
    load_settings(environ={"FLM_SERVICE_PORT": "52625"})


def test_minus_one_and_empty_mean_not_given() -> None:
    flags = {"ctx_len": "-1", "port": -1, "api_keys": []}
    assert load_settings(flags, environ={"FLM_THREADS": ""}) == Settings()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0),
        ("0", 0),
        (300, 300),
        (1.5, 1.5),
        ("300", 300),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("0s", 0),
        (-1, None),
        ("-1", None),
        ("-1m", None),
    ],
)
def test_durations_are_written_as_ollama_writes_them(given: object, seconds: float | None) -> None:
    assert duration_s(given) == seconds
    assert load_settings({"keep_alive": given}, environ={"FLM_KEEP_ALIVE": "7"}).keep_alive == (
        seconds
    )


@pytest.mark.parametrize(
    "given", ["", "m", "soon", "5 minutes", "nan", "inf", "1e999", True, "5d", "1_0"]
)
def test_other_durations_are_refused(given: object) -> None:
    with pytest.raises(BadSettings, match="--keep-alive"):
        load_settings({"keep_alive": given}, environ={})


def test_keys_are_flags() -> None:
    names = {key(field.name) for field in fields(Settings)}
    assert {"ctx-len", "q-len", "socket", "api-key", "prefill-chunk-len", "pmode"} <= names


def test_the_seeds_on_and_off_are_understood_everywhere() -> None:
    assert Settings().reuse_prompt
    assert Settings().read_ahead
    assert not load_settings({"reuse_prompt": "off"}, environ={}).reuse_prompt
    assert not load_settings(environ={"FLM_READ_AHEAD": "off"}).read_ahead
    write('reuse-prompt = "off"\nread-ahead = false')
    settings = load_settings({"reuse_prompt": "on"}, environ={})
    assert (settings.reuse_prompt, settings.read_ahead) == (True, False)
    with pytest.raises(BadSettings, match=r"--reuse-prompt is 'maybe'.* one of on, off") as error:
        load_settings({"reuse_prompt": "maybe"}, environ={})
    assert error.value.fix.endswith(": on")


@pytest.mark.parametrize(
    ("flags", "card_mb", "card_slots", "limits"),
    [
        ({}, None, None, (4096, None)),
        ({}, 1536, 4, (1536, 4)),
        ({"prefix_cache_mb": 512, "prefix_slots": 9}, 1536, 4, (512, 9)),
        ({"prefix_cache_mb": 0}, 1536, 4, (256, 4)),
        ({"prefix_cache_mb": 0, "prefix_disk_mb": 0}, 1536, 4, (0, 4)),
        ({"reuse_prompt": False}, 1536, 4, (0, 4)),
    ],
)
def test_a_models_card_bounds_its_prefix_cache_where_no_setting_does(
    flags: dict[str, Any], card_mb: int, card_slots: int, limits: tuple[int, int]
) -> None:
    card = replace(find("smollm2"), prefix_cache_mb=card_mb, prefix_slots=card_slots)
    found = Limits.of(Settings(**flags), card)
    assert (found.bytes // MIB, found.slots) == limits
    assert found.transit == (limits[0] == 256)


@pytest.mark.parametrize("given", ["8_192", "\uff18\uff11\uff19\uff12", "0x2000", "8192.0", "8e3"])
def test_whole_numbers_are_decimal_and_nothing_else(given: str) -> None:
    assert load_settings(environ={"FLM_CTX_LEN": " 8192 "}).ctx_len == 8192
    with pytest.raises(BadSettings, match="FLM_CTX_LEN"):
        load_settings(environ={"FLM_CTX_LEN": given})


@pytest.mark.parametrize("given", ["1_0", "\u0661", "1e", "."])
def test_other_numbers_are_no_more_than_that(given: str) -> None:
    assert load_settings(environ={"FLM_DRAIN": "2.5e0"}).drain_s == 2.5
    with pytest.raises(BadSettings, match="FLM_DRAIN"):
        load_settings(environ={"FLM_DRAIN": given})
