"""The conversation of the playground."""

from __future__ import annotations

import json

from specscope.app.tabs.chat import FRESH, Chat, conversation

ANSWERS = (("Autoregressive", "Hello!"), ("PEARL", "Hi there."))


def test_the_next_message_continues_the_chosen_answer_without_turns_that_have_none() -> None:
    chat = Chat().asked("Hi").started(("a", "b")).answered(ANSWERS).asked("And you?", chosen=1)
    assert chat.messages("Be kind.") == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hi there."},
        {"role": "user", "content": "And you?"},
    ]
    assert chat.answers == ()
    assert (
        Chat().asked("Hi").messages("  ")
        == Chat().asked("Hi").messages(None)
        == [{"role": "user", "content": "Hi"}]
    )
    chat = Chat().asked("Hi").answered((("PEARL", " "),))
    assert chat.asked("Again", 0).messages("") == [{"role": "user", "content": "Again"}]
    assert chat.asked("Again", 7).past == ()


def test_a_message_starts_fresh_unless_it_continues_an_answer() -> None:
    first = Chat().asked("Hi").answered(ANSWERS)
    assert first.asked("New") == Chat((), "New")
    assert first.usual == FRESH
    assert first.offered == [("starts fresh", -1), ("continues Autoregressive", 0), ("continues PEARL", 1)]
    second = first.asked("And you?", 1).answered((("PEARL · γ 4", "Well."), ("DSI", "Fine.")))
    assert second.usual == 0, "the conversation goes on with PEARL"
    failed = first.asked("And you?", 1)
    assert failed.offered == [("starts fresh", -1), ("continues PEARL", 0)]
    assert failed.asked("Again", failed.usual).past == failed.past
    assert second.asked("New") == Chat((), "New")


def test_json_of_the_page_restores_the_conversation_with_the_names_of_its_runs() -> None:
    chat = Chat().asked("Hi").answered(ANSWERS).asked("More", 0).started(("t1",))
    assert Chat.of(json.loads(json.dumps(chat.to_json()))) == chat
    for broken in (None, {}, {"past": 3}, {"past": [["a"]]}, {"answers": ["x"]}, "text"):
        assert Chat.of(broken) == Chat()
    chat = Chat().asked("Hi").answered(ANSWERS, ("a", "b~c")).asked("More", 0)
    assert chat.turns == (("a", "b~c"),)
    chat = chat.answered(ANSWERS, ("d",))
    assert chat.turns == (("a", "b~c"), ("d",))
    assert Chat.of(json.loads(json.dumps(chat.to_json()))) == chat


def test_texts_are_escaped_and_a_long_prompt_is_folded() -> None:
    chat = (
        Chat()
        .asked("<b>bold</b>")
        .answered((("PEARL", "<script>alert(1)</script>"),))
        .asked("<img src=x>", 0)
    )
    page = conversation(chat)
    assert "<script>" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "1 earlier turn " in page
    assert conversation(Chat()) == ""
    page = conversation(Chat().asked("word " * 400))
    assert "<details" in page
    assert "2,000 characters" in page
    assert "<details" not in conversation(Chat().asked("word"))
