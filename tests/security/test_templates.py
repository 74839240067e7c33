"""Attacks by a chat template: programs that never end, fill the memory, or write lines into messages."""

from __future__ import annotations

import os
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from engine.errors import ModelError, UsageError
from engine.pairs import pair as pairs
from engine.pairs import templates
from engine.pairs.pair import Pair
from engine.pairs.templates import Renderer
from tests.security.odd import one_line

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
    "divides by zero": ("{{ 1 / (messages | length - 1) }}", "ZeroDivisionError"),
    "loops 10 to the 10 times and writes nothing": (NESTED, "runs for more than 0.5 s of processor time"),
    "makes a number of 10 to the 10 digits": ("{{ 10 ** (10 ** 10) }}", "runs for more than 0.5 s"),
    "makes 10 to the 10 characters at once": ("{{ 'a' * 10 ** 10 }}", "too much memory"),
    "doubles a text 99 times": (GROWING, "too much memory|runs for more than"),
    "pads to 10 to the 9 characters": ("{{ '%1000000000d' % 1 }}", "too much memory"),
    "centres in 10 to the 9 characters": ("{{ 'a' | center(1000000000) }}", "too much memory"),
    "makes more text than fits": ("{{ 'a' * 200000 }}", "makes 200000 characters; the limit is 100004"),
    "recurses": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "nests 10,000 brackets": ("{{" + "(" * 10_000 + "1" + ")" * 10_000 + "}}", "RecursionError"),
    "nests 30 loops": ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "too many statically nested blocks"),
    "is no template": ("{% if %}", "TemplateSyntaxError"),
    "reads what is not there": ("{{ messages[5].content.x }}", "UndefinedError"),
    "reaches for Python": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    "reaches for Python through format": ("{{ '{0.__class__.__base__}'.format('') }}", "SecurityError"),
    "hides an underscore in a namespace": ("{% set ns = namespace(__class__=1) %}", "SecurityError"),
    "makes half a character": ("{{ '\\ud800' }}", "surrogates not allowed"),
    "includes a file": ("{% include '/etc/passwd' %}", "no loader"),
}


@pytest.fixture(scope="module")
def renderer():
    made = Renderer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "SECONDS", 0.5)
        yield made
    made.close()


@pytest.fixture
def target(tmp_path):
    skip = shutil.ignore_patterns("*.safetensors")
    return shutil.copytree(pairs.PAIRS / "bundled" / "target", tmp_path / "target", ignore=skip)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_template_that(attack, renderer):
    template, message = ATTACKS[attack]
    with pytest.raises(ModelError) as error:
        renderer.render(template, HI, NAMES)
    assert re.search(message, one_line(str(error.value)))
    assert renderer.render("{{ bos_token }} goes on", HI, NAMES) == "<s> goes on"


def test_a_refusal_of_700_000_characters_and_many_lines_is_one_short_line(renderer):
    with pytest.raises(UsageError) as error:
        renderer.render("{{ raise_exception('no\n\x1b[31m' * 100000) }}", HI, NAMES)
    assert one_line(str(error.value)).startswith("no ")


@pytest.mark.parametrize("template", PUBLISHED)
def test_templates_as_published_give_the_text_that_transformers_gives(template, renderer):
    for chat in CHATS:
        want, _ = render_jinja_template(
            conversations=[chat], chat_template=PUBLISHED[template], add_generation_prompt=True, **NAMES
        )
        assert renderer.render(PUBLISHED[template], chat, NAMES) == want[0]


def test_the_bundled_template_gives_the_text_that_transformers_gives():
    pair = Pair.find("bundled")
    for chat in CHATS:
        want = pair.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert (
            templates.RENDERER.render(pair.tokenizer.chat_template, chat, NAMES | {"bos_token": "<|bos|>"})
            == want
        )


def test_a_long_chat_may_be_as_long_as_it_is(renderer):
    chat = [{"role": "user", "content": "x" * 500_000}]
    assert len(renderer.render("{{ messages[0].content }}", chat, {})) == 500_000


def test_a_model_with_a_template_beyond_its_limits_is_refused_when_it_is_opened(target):
    for template, message in (
        ("{{ 'a' * 10**10 }}", "too much memory"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ):
        (target / "chat_template.jinja").write_text(template)
        with pytest.raises(ModelError, match=f"its chat template fails: .*{message}") as error:
            Pair.of(target)
        one_line(str(error.value))


@pytest.mark.parametrize("template", ["5", "[1]", '{"a": "b"}', '[{"name": "x"}]'])
def test_a_template_of_another_type_is_refused_when_its_model_is_opened(target, template):
    (target / "chat_template.jinja").unlink()
    config = (target / "tokenizer_config.json").read_text().replace("{", f'{{"chat_template": {template},', 1)
    (target / "tokenizer_config.json").write_text(config)
    with pytest.raises(ModelError) as error:
        Pair.of(target)
    one_line(str(error.value))


def test_a_template_that_fails_on_some_messages_only_is_refused_with_the_prompt(target):
    (target / "chat_template.jinja").write_text("{{ 'a' * 10 ** (messages[0].content | length) }}")
    pair = Pair.of(target)
    assert pair.encode("Hi")
    with pytest.raises(ModelError, match="the chat template of target fails: it needs too much memory"):
        pair.encode("a longer text")


def test_a_template_that_forges_the_stand_in_of_a_message_gets_no_other_text(target):
    (target / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}\ue0007\ue001\ue000"
        + "9" * 5000
        + "\ue001"
    )
    assert Pair.of(target).encode("<|eos|>")


def test_a_renderer_that_is_killed_or_stopped_is_replaced(monkeypatch):
    monkeypatch.setattr(templates, "_PATIENCE", 1)
    renderer = Renderer()
    try:
        assert renderer.render("one", HI, {}) == "one"
        for signum, message in ((signal.SIGSTOP, "does not answer"), (signal.SIGKILL, "ends the process")):
            first = renderer._process
            os.kill(first.pid, signum)
            with pytest.raises(ModelError, match=message):
                renderer.render("x", [{"role": "user", "content": "x" * 1_000_000}], {})
            assert first.returncode is not None
            assert renderer.render("two", HI, {}) == "two"
    finally:
        renderer.close()


def test_eight_threads_may_render_at_once(renderer):
    with ThreadPoolExecutor(8) as pool:
        texts = [str(i) for i in range(200)]
        assert list(pool.map(lambda text: renderer.render(text, HI, {}), texts)) == texts


def test_the_renderer_ends_with_the_process_that_started_it():
    renderer = Renderer()
    renderer.render("x", HI, {})
    renderer._connection.close()
    try:
        assert renderer._process.wait(60) == 0
    finally:
        renderer.close()
