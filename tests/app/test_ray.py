"""The page on a Ray cluster, here a fake one; tests/engine/runtimes/test_ray.py has real nodes."""

from __future__ import annotations

import json
import sys

import gradio as gr
import pytest

from specscope.app.ray import Ray
from specscope.app.tabs import playground
from specscope.app.tabs.form import Form, build_settings
from specscope.app.tabs.playground import Playground
from specscope.app.tabs.requests import FormError, make_requests
from specscope.engine.cluster import ray_cluster, ray_connect
from specscope.engine.errors import SpecScopeError, WorkerDied
from tests.app.commands import call
from tests.app.fakes import FakeCluster
from tests.app.test_plan import MESSAGES, values
from tests.app.test_playground import given, merged, play

HEAD = "10.0.0.1:6379"


@pytest.fixture(scope="module")
def built():
    with gr.Blocks():
        return Playground(None, ray=Ray(HEAD))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Ray | None]:
    """Serve nothing; return the Ray cluster of each call."""
    offered: list[Ray | None] = []

    def serve(ray: Ray | None, **_) -> int:
        offered.append(ray)
        return 0

    monkeypatch.setattr("specscope.app.server.serve", serve)
    monkeypatch.setattr("specscope.engine.runtimes.forks.warm_up", lambda: None)
    return offered


def devices(form: Form) -> list[tuple[str, str]]:
    return form.controls["runtime"].choices


def test_the_choice_is_there_with_the_option_only(page) -> None:
    assert devices(page.form)[-1] == (f"Ray cluster, {HEAD}", "ray")
    assert page.form.controls["runtime"].value == "local-process", "as without the option"
    with gr.Blocks():
        build_settings(form := Form(), "bundled")
    assert devices(form) == devices(page.form)[:-1]
    with pytest.raises(FormError, match="has no Ray cluster; start it with specscope play --ray") as refused:
        make_requests(values(runtime="ray"), MESSAGES, "g")
    assert refused.value.where == "runtime"


def test_runs_go_to_the_cluster_of_the_option_and_back(page, opener, monkeypatch) -> None:
    monkeypatch.setattr(playground, "busy_since", lambda *_: "Other programs used 1.7 of 2 cores")
    state = merged(play(page.ask("Hi", "", None, None, *given(page, runtime="ray"))))
    assert 'data-state="done"' in state[page.turn]
    assert "measured · ray" in state[page.panes[0]]
    assert "Other programs" not in state[page.turn], "the cluster's workers are other programs here"
    merged(play(page.ask("Hi", "", None, None, *given(page))))
    assert [(c.place["runtime"], c.place["address"]) for c in opener.opened] == [
        ("ray", HEAD),
        ("local-process", None),
    ]
    assert opener.opened[0].closed, "runs of this machine are alone on it"
    names = json.loads(state[page.viewer])["runs"]
    assert [page.service.store.load(name).header.runtime for name in names] == ["ray"] * 3


def test_a_dead_node_and_a_lost_cluster_end_one_run_with_their_names(page, opener) -> None:
    node = WorkerDied("the worker on node 2 (10.0.0.2) · CPU 0 (process 7) is gone: it does not answer")
    lost = SpecScopeError(f"no Ray cluster answers at {HEAD}; start its head there")
    opener.waiting = [FakeCluster(error=node, error_after=3), FakeCluster(), FakeCluster(), lost]
    one = given(page, runtime="ray", methods=json.dumps({"chosen": [{"method": "pearl"}]}))
    first, second, local, third = (
        merged(play(page.ask("Hi", "", None, None, *(one if on_ray else given(page)))))
        for on_ray in (True, True, False, True)
    )
    for state, error in ((first, node), (third, lost)):
        assert 'data-state="failed"' in state[page.panes[0]]
        assert str(error) in state[page.panes[0]]
    for state in (second, local):
        assert 'data-state="done"' in state[page.turn]


def test_stop_ends_a_run_on_the_cluster_and_keeps_the_connection(page, opener) -> None:
    opener.delay = 0.02

    def stop_after_first_draw(updates) -> None:
        if "Once" in str(updates[-1].get(page.panes[0], "")):
            page.stop_runs(updates[0][page.chat])

    state = merged(play(page.ask("Hi", "", None, None, *given(page, runtime="ray")), stop_after_first_draw))
    assert 'data-state="cancelled"' in state[page.turn]
    assert not opener.opened[0].closed


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--ray", "--address", "ray://host:1"], 2, "address is 'ray://host:1'; give host:port"),
        (["--ray", "--address", "127.0.0.1:1"], 1, "no Ray cluster answers at 127.0.0.1:1; start its head"),
    ],
)
def test_bad_use_ends_before_the_page_opens(words, code, message, capsys, served) -> None:
    found, out, err = call(capsys, "play", *words)
    assert (found, out, served) == (code, "", [])
    assert message in err
    assert err.count("\n") == 1


def test_without_ray_the_option_names_the_extra(capsys, served, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = call(capsys, "play", "--ray")
    assert (code, err, served) == (2, "specscope: --ray needs: pip install 'specscope[ray]'\n", [])


def test_a_cluster_that_answers_is_offered_and_one_of_this_machine_gets_its_token(
    capsys, served, monkeypatch
) -> None:
    called: list[object] = []

    class Answering:
        def __init__(self, address: str, cpus: int) -> None:
            called.append(address)

        def nodes(self) -> None:
            called.append("nodes")

        def close(self) -> None:
            called.append("close")

    monkeypatch.setattr("specscope.app.cli.play.find_spec", lambda _: object())
    monkeypatch.setattr(ray_cluster, "RayCluster", Answering)
    monkeypatch.setattr(ray_connect, "import_ray", lambda *, starts: called.append(starts))
    for words in (["--ray", "--address", HEAD], ["--ray"], []):
        code, _, _ = call(capsys, "play", "--pair", "bundled", *words)
        assert code == 0
    assert called == [HEAD, "nodes", "close", True]
    assert served == [Ray(HEAD), Ray(), None]
    assert Ray().title == "Ray cluster, this machine"
