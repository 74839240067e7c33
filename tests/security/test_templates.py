"""Attacks by a chat template: endless programs, huge memory, and lines in error messages."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from specscope.engine import hangs
from specscope.engine.checkpoints import catalog, templates
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.templates import Renderer
from specscope.engine.errors import ModelError, UsageError
from tests.security.odd import refused

HI = [{"role": "user", "content": "Hi"}]
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
CHATS = (
    HI,
    [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "1 < 2 & 'x'\n\n"},
        {"role": "assistant", "content": "täst 漢字"},
        {"role": "user", "content": "More {{ 1 }}"},
    ],
)
PUBLISHED = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama 2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system = false %}{% endif %}{% for message in loop_messages %}"
    "{% if loop.index0 == 0 and system %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %}{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}",
    "blocks, namespaces and macros": """{%- macro shout(text) %}{{ text | upper }}{% endmacro %}
{%- set ns = namespace(found=false, n=0) %}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% set ns.found = true %}{% continue %}{% endif %}
    {%- set ns.n = ns.n + 1 %}
    {%- generation %}{{ shout(m.content) }}{% set inside = 1 %}{% endgeneration %}
{% if not loop.last %}, {% else %}.{% endif %}
{%- endfor %}
  {% if tools is none and documents is not defined or documents is none %}
  {{ ns.found }} {{ ns.n }} {{ inside is defined }} {{ messages | tojson }} {{ dict(a=1) | tojson(indent=2) }}
  {% endif %}
""",
}
NESTED = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
GROWING = "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"
ATTACKS = {
    "division by zero": ("{{ 1 / (messages | length - 1) }}", "ZeroDivisionError"),
    "loop of 10 to the 10 turns without output": (NESTED, "runs for more than 0.2 s of processor time"),
    "number of 10 to the 10 digits": ("{{ 10 ** (10 ** 10) }}", "runs for more than 0.2 s"),
    "text of 10 to the 10 characters": ("{{ 'a' * 10 ** 10 }}", "too much memory"),
    "text doubled 99 times": (GROWING, "too much memory|runs for more than"),
    "padding to 10 to the 9 characters": ("{{ '%1000000000d' % 1 }}", "too much memory"),
    "centring in 10 to the 9 characters": ("{{ 'a' | center(1000000000) }}", "too much memory"),
    "more text than the limit": ("{{ 'a' * 200000 }}", "makes 200000 characters; the limit is 100004"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "10,000 nested brackets": ("{{" + "(" * 10_000 + "1" + ")" * 10_000 + "}}", "RecursionError"),
    "30 nested loops": ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "too many statically nested blocks"),
    "no template": ("{% if %}", "TemplateSyntaxError"),
    "missing variable": ("{{ messages[5].content.x }}", "UndefinedError"),
    "Python internals": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    "Python internals through format": ("{{ '{0.__class__.__base__}'.format('') }}", "SecurityError"),
    "underscore in a namespace": ("{% set ns = namespace(__class__=1) %}", "SecurityError"),
    "half of a surrogate pair": ("{{ '\\ud800' }}", "surrogates not allowed"),
    "included file": ("{% include '/etc/passwd' %}", "no loader"),
}


@pytest.fixture(scope="module")
def renderer():
    renderer = Renderer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "SECONDS", 0.5)
        yield renderer
    renderer.close()


@pytest.fixture
def target(tmp_path):
    skip = shutil.ignore_patterns("*.safetensors")
    return shutil.copytree(catalog.PAIRS / "bundled" / "target", tmp_path / "target", ignore=skip)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_template_is_refused(attack, renderer):
    template, message = ATTACKS[attack]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "SECONDS", 0.2)
        assert re.search(message, refused(lambda: renderer.render(template, HI, NAMES), ModelError))
    assert renderer.render("{{ bos_token }} goes on", HI, NAMES) == "<s> goes on"


def test_a_long_refusal_of_many_lines_becomes_one_short_line(renderer):
    template = "{{ raise_exception('no\n\x1b[31m' * 100000) }}"
    assert refused(lambda: renderer.render(template, HI, NAMES), UsageError).startswith("no ")


@pytest.mark.parametrize("template", PUBLISHED)
def test_published_templates_give_transformers_text(template, renderer):
    for chat in CHATS:
        want, _ = render_jinja_template(
            conversations=[chat], chat_template=PUBLISHED[template], add_generation_prompt=True, **NAMES
        )
        assert renderer.render(PUBLISHED[template], chat, NAMES) == want[0]


def test_the_bundled_template_gives_transformers_text():
    pair = Pair.find("bundled")
    for chat in CHATS:
        want = pair.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        names = NAMES | {"bos_token": "<|bos|>"}
        assert templates.RENDERER.render(pair.tokenizer.chat_template, chat, names) == want


def test_a_long_chat_does_not_exceed_the_limit(renderer):
    chat = [{"role": "user", "content": "x" * 500_000}]
    assert len(renderer.render("{{ messages[0].content }}", chat, {})) == 500_000


TEMPLATES = {
    "{{ 'a' * 10**10 }}": "its chat template fails: .*too much memory",
    "{{ 1 / 0 }}": "its chat template fails: .*ZeroDivisionError",
    **dict.fromkeys(("5", "[1]", '{"a": "b"}', '[{"name": "x"}]'), ""),
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_opening_a_model_refuses_a_template_beyond_its_limits_or_of_another_type(target, template):
    if template.startswith("{{"):
        (target / "chat_template.jinja").write_text(template)
    else:
        (target / "chat_template.jinja").unlink()
        config = target / "tokenizer_config.json"
        config.write_text(config.read_text().replace("{", f'{{"chat_template": {template},', 1))
    assert re.search(TEMPLATES[template], refused(lambda: Pair.of(target), ModelError))


def test_a_template_that_fails_for_a_prompt_refuses_that_prompt(target):
    (target / "chat_template.jinja").write_text("{{ 'a' * 10 ** (messages[0].content | length) }}")
    pair = Pair.of(target)
    assert pair.encode("Hi")
    with pytest.raises(ModelError, match="the chat template of target fails: it needs too much memory"):
        pair.encode("a longer text")


def test_a_template_may_contain_a_placeholder_of_a_message(target):
    loop = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    (target / "chat_template.jinja").write_text(f"{loop}\ue0007\ue001\ue000{'9' * 5000}\ue001")
    assert Pair.of(target).encode("<|eos|>")


def test_a_stopped_process_is_replaced_and_no_template_is_blamed(renderer, monkeypatch):
    monkeypatch.setattr(hangs, "EVERY_S", 0.05)
    assert renderer.render("one", HI, {}) == "one"
    first = renderer._process
    os.kill(first.pid, signal.SIGSTOP)
    long = "x" * 1_000_000  # more than the connection takes
    chat = [{"role": "user", "content": long}]
    assert renderer.render("{{ messages[0].content }}", chat, {}) == long
    assert first.returncode == -signal.SIGKILL


def test_a_process_that_ended_while_idle_is_replaced_and_no_template_is_blamed(renderer):
    renderer.render("one", HI, {})
    os.kill(renderer._process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, renderer._process.pid, os.WEXITED | os.WNOWAIT)
    assert renderer.render("two", HI, {}) == "two"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGPROF])
def test_a_template_whose_process_gets_a_signal_is_rendered_by_another_process(renderer, number):
    renderer.render("one", HI, {})
    first = renderer._process
    first.send_signal(signal.SIGSTOP)  # it reads no request before the other signal
    sending = threading.Timer(0.2, lambda: (first.send_signal(number), first.send_signal(signal.SIGCONT)))
    sending.start()
    assert renderer.render("two", HI, {}) == "two"
    assert renderer._process is not first
    sending.join()


def test_a_template_that_ends_two_processes_is_refused(monkeypatch, tmp_path):
    script = tmp_path / "template_process.py"
    script.write_text("import os, sys; os.read(int(sys.argv[1]), 100); os.abort()")
    monkeypatch.setattr(templates, "__file__", str(tmp_path / "templates.py"))
    with pytest.raises(ModelError, match="it ends the process that renders it"):
        Renderer().render("one", HI, {})


def test_eight_threads_can_render_at_the_same_time(renderer):
    with ThreadPoolExecutor(8) as pool:
        texts = [str(i) for i in range(200)]
        assert list(pool.map(lambda text: renderer.render(text, HI, {}), texts)) == texts


def test_the_process_ends_when_its_connection_closes():
    renderer = Renderer()
    renderer.render("x", HI, {})
    renderer._connection.close()
    try:
        assert renderer._process.wait(60) == 0
    finally:
        renderer.close()
