"""Attacks on the login: guessing, malformed headers, locking out the legitimate user."""

from __future__ import annotations

import argparse
import base64

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from specscope.app.cli import play
from specscope.app.cli.options import add_options
from specscope.app.command import build_parser
from specscope.app.web import guard
from specscope.app.web.guard import COOKIE, FREE_GUESSES, MAX_WAIT, Login
from specscope.app.web.server import check_exposure
from specscope.engine.errors import UsageError

RIGHT, WRONG = ("ada", "s3cret"), ("ada", "guess")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def app(clock: Clock) -> Login:
    return Login(PlainTextResponse("inside"), ":".join(RIGHT), clock)


def browser(app: Login, address: str = "10.0.0.1") -> TestClient:
    return TestClient(app, client=(address, 50000))


def test_guesses_are_slowed_down_to_one_in_sixteen_seconds(app, clock) -> None:
    attacker, evaluated = browser(app), 0
    for _ in range(200):
        evaluated += attacker.get("/", auth=WRONG).status_code == 401
        clock.now += 1
    assert evaluated <= FREE_GUESSES + 5 + 200 / MAX_WAIT


def test_the_right_password_is_not_tried_while_an_address_must_wait(app, clock) -> None:
    attacker = browser(app)
    for _ in range(FREE_GUESSES):
        assert attacker.get("/", auth=WRONG).status_code == 401
    answer = attacker.get("/", auth=RIGHT)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert "try again in 1 s" in answer.text


def test_no_wait_is_longer_than_sixteen_seconds(app, clock) -> None:
    attacker = browser(app)
    for _ in range(50):
        attacker.get("/", auth=WRONG)
        clock.now += MAX_WAIT
    attacker.get("/", auth=WRONG)
    clock.now += MAX_WAIT
    assert attacker.get("/", auth=RIGHT).status_code == 200


IPV6 = [f"2001:db8::{number:x}" for number in range(FREE_GUESSES)]
NETWORK = ["10.0.0.1", "10.0.0.2", "::ffff:10.0.0.3"] * FREE_GUESSES
ADDRESSES = {
    "another address does not wait": (["10.0.0.1"] * 50, "10.0.0.2", 401),
    "an IPv6 network shares its guesses": (IPV6, "2001:db8::ffff", 429),
    "another IPv6 network does not wait": (IPV6, "2001:db8:0:1::1", 401),
    "an address in IPv6 form is the same": (NETWORK, "10.0.0.3", 429),
    "addresses of a network are counted apart": (NETWORK, "10.0.0.4", 401),
}
"""Addresses of wrong guesses, and what another guess from an address is answered."""


@pytest.mark.parametrize("name", ADDRESSES)
def test_guesses_are_counted_by_address(app, name) -> None:
    guesses, address, code = ADDRESSES[name]
    for guess in guesses:
        browser(app, guess).get("/", auth=WRONG)
    assert browser(app, address).get("/", auth=WRONG).status_code == code


def test_a_browser_that_logged_in_never_waits_for_guesses_from_its_address(app) -> None:
    legitimate, attacker = browser(app), browser(app)
    first = legitimate.get("/", auth=RIGHT)
    assert all(part in first.headers["set-cookie"] for part in (COOKIE, "HttpOnly", "SameSite=Strict"))
    for _ in range(50):
        attacker.get("/", auth=WRONG)
    assert attacker.get("/", auth=RIGHT).status_code == 429
    assert legitimate.get("/", auth=RIGHT).status_code == 200


def test_the_cookie_replaces_no_password_and_a_forged_one_no_wait(app) -> None:
    legitimate, attacker = browser(app), browser(app)
    legitimate.get("/", auth=RIGHT)
    assert legitimate.get("/").status_code == 401
    assert legitimate.get("/", auth=WRONG).status_code == 401
    attacker.cookies.set(COOKIE, "x" * 43)
    for _ in range(FREE_GUESSES):
        attacker.get("/", auth=WRONG)
    assert attacker.get("/", auth=RIGHT).status_code == 429


def test_a_login_and_a_long_pause_reset_the_count(app, clock) -> None:
    user = browser(app)
    for _ in range(3):
        for _ in range(FREE_GUESSES - 1):
            assert user.get("/", auth=WRONG).status_code == 401
        assert user.get("/", auth=RIGHT).status_code == 200
        user.cookies.clear()
    for _ in range(50):
        user.get("/", auth=WRONG)
    clock.now += guard.RESET_SECONDS + 1
    assert user.get("/", auth=WRONG).status_code == 401
    assert user.get("/", auth=RIGHT).status_code == 200


def test_guesses_from_many_addresses_use_bounded_memory(app, monkeypatch) -> None:
    monkeypatch.setattr(guard, "MAX_ADDRESSES", 10)
    for number in range(30):
        browser(app, f"10.0.1.{number}").get("/", auth=WRONG)
    assert len(app._guesses._counts) == 10


HEADERS = (
    *(
        b"",
        b"Basic",
        b"Basic %%%",
        b"Basic \xff\xfe",
        b"Bearer x",
        "Basic é".encode(),
        b"Basic " + b"A" * 60_000,
    ),
    b"Basic " + base64.b64encode(b"\xff\x00:\xff"),
)


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_a_malformed_authorization_header_is_a_wrong_login(app, header) -> None:
    answer = browser(app).get("/", headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic")


def test_the_password_is_read_from_the_environment(monkeypatch) -> None:
    logins = []
    monkeypatch.setattr("specscope.app.web.server.serve", lambda **more: logins.append(more["auth"]) or 0)
    monkeypatch.setenv("SPECSCOPE_AUTH", "ada:from-the-environment")
    for line in (["play"], ["play", "--auth", "ada:typed"]):
        play.run(build_parser().parse_args(line))
    monkeypatch.delenv("SPECSCOPE_AUTH")
    play.run(build_parser().parse_args(["play"]))
    assert logins == ["ada:from-the-environment", "ada:typed", None]
    parser = argparse.ArgumentParser()
    add_options(parser, *play.OPTIONS)
    assert "SPECSCOPE_AUTH" in parser.format_help()


@pytest.mark.parametrize("auth", ["", "ada", "ada:", ":x", "ada:\udcff"])
def test_a_malformed_login_is_bad_usage(auth) -> None:
    with pytest.raises(UsageError, match=r"--auth \(or SPECSCOPE_AUTH\) must be user:password"):
        check_exposure("0.0.0.0", auth, unsafe=False)


def test_all_addresses_of_this_machine_share_one_count(app):
    addresses = ["127.0.0.1", "127.0.0.2", "127.9.8.7", "::1", "::ffff:127.0.0.3", "127.0.0.4"]
    codes = [browser(app, address).get("/", auth=WRONG).status_code for address in addresses]
    assert codes == [401] * FREE_GUESSES + [429]
