"""A template from anywhere takes neither all memory nor all time, whatever it grows and how."""

import tracemalloc

import pytest

from flm.core.chat import Conversation, Message
from flm.errors import BadModelFile, BadRequest
from flm.text import sandbox
from flm.text.template import ChatTemplate

GROW = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"


def grow(start: str, step: str, end: str = "{{ ns.x }}") -> str:
    return GROW.replace("START", start).replace("STEP", step) + end


def render(source: str) -> str:
    template = ChatTemplate(source, bos_token="", eos_token="")
    return template.render(Conversation((Message("user", "hi"),)))


@pytest.mark.parametrize(
    "source",
    [
        grow("'aaaa'", "ns.x ~ ns.x"),
        grow("'aaaa'", "ns.x + ns.x"),
        grow("[1, 2]", "ns.x + ns.x", "{{ ns.x | length }}"),
        grow("[]", "[ns.x, ns.x]"),
        grow("{}", "{'a': ns.x, 'b': ns.x}", "{{ ns.x | tojson }}"),
        grow("'a'", "ns.x | replace('a', 'aa')"),
        grow("'a'", "ns.x.replace('a', 'aa')"),
        grow("'a'", "[ns.x, ns.x] | join('b')"),
        grow("'a'", "''.join([ns.x, ns.x])"),
        grow("'a'", "''.join([ns.x, ns.x] | map('upper'))"),
        grow("'a'", "'%s%s' % (ns.x, ns.x)"),
        grow("'a'", "'{}{}'.format(ns.x, ns.x)"),
        grow("'a'", "'%s%s' | format(ns.x, ns.x)"),
        grow("9", "ns.x * ns.x"),
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}"
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
        "{% macro m(x) %}{{ m([x, x]) }}{% endmacro %}{{ m([1]) }}",
        "{{ '%0999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:>2000000000}'.format('a') }}",
        "{{ '{:{}}'.format('a', 2000000000) }}",
        "{{ 'a'.ljust(3000000000) }}",
        "{{ ('\n' * 100000) | indent(1000000) }}",
        "{{ ('a,' * 10000) | replace('a', 'b' * 10000000) }}",
        "{{ ('a' * 10000).replace('a', 'b' * 10000000) }}",
        "{{ range(90000) | join('b' * 1000000) }}",
        "{{ ('b' * 1000000).join(range(90000) | map('string')) }}",
        "{{ [0] * 100000000 }}",
    ],
)
def test_a_template_that_grows_without_end_is_ended(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "WEIGHT_MAX", 2**18)
    tracemalloc.start()
    try:
        with pytest.raises(
            BadRequest, match=r"wrote more than|pads a text|unsafe|recursion|too large"
        ):
            render(source)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**26


@pytest.mark.parametrize("source", ["{{ 'a' | center(9) }}", "{{ 'a' | wordwrap(1) }}"])
def test_a_filter_that_only_pads_is_not_known(source: str) -> None:
    with pytest.raises(BadModelFile):
        render(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' ~ 1 ~ none ~ [2] }}", "a1None[2]"),
        ("{{ 'a' + 'b' }}{{ [1] + [2] }}{{ 1 + 2 }}", "ab[1, 2]3"),
        ("{{ 'a%sb' % 1 }}{{ '%03d' % 7 }}{{ 7 % 4 }}", "a1b0073"),
        ("{{ '{} {x:>3}'.format(1, x=2) }}", "1   2"),
        ("{{ '%s-%s' | format('a', 1) }}", "a-1"),
        ("{{ '{\"a\": {\"b\": %s, \"c\": 12345}}' % 1 }}", '{"a": {"b": 1, "c": 12345}}'),
        ("{{ '{{\"a\": {{\"12345\": {}}}}}'.format(1) }}", '{"a": {"12345": 1}}'),
        ("{{ [1, 2] | join(', ') }}{{ ', '.join(['a', 'b']) }}", "1, 2a, b"),
        ("{{ messages | join('|', attribute='role') }}", "user"),
        ("{{ 'aXbX' | replace('X', '-') }}{{ 'aXbX' | replace('X', '-', 1) }}", "a-b-a-bX"),
        ("{{ 'a\nb' | indent }}{{ 'a\nb' | indent(2, true) }}", "a\n    b  a\n  b"),
        ("{{ ' a ' | trim | upper }}{{ 5 | string }}{{ undefined | default('d') }}", "A5d"),
        ("{{ none }}{{ true }}{{ 1.5 }}", "NoneTrue1.5"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}"
         "{{ ns.n }}", "3"),
    ],
)  # fmt: skip
def test_what_templates_do_writes_what_jinja_writes(source: str, text: str) -> None:
    assert render(source) == text
