"""Twenty people at once on loopback, without an error; and how long the server needs. Some ten seconds.

Seconds on the clock depend on what else the machine does, so they are printed; what is held to a limit is
the processor time that the server took.
"""

from __future__ import annotations

import random
import select
import statistics
import threading
import time
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

pytest.importorskip("uvicorn", reason="NOT CHECKED: the page (pip install -e '.[test]')")
pytest.importorskip("starlette", reason="NOT CHECKED: the page (pip install -e '.[test]')")

PEOPLE, EACH = 20, 6
START = {"model": "llama-3.1-70b", "gpu": "h100-sxm", "gpus": "64", "seq": "8192", "gbs": "512"}


def ask(connection: HTTPConnection, path: str) -> tuple[int, float, float, bytes]:
    """Status, seconds at the client, processor seconds of the server, body."""
    begun = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    spent = time.perf_counter() - begun
    cpu = answer.headers["server-timing"].partition("cpu;dur=")[2]
    return answer.status, spent, float(cpu) / 1e3, body


def person(server_url: str, seed: int, seen: list[tuple[int, float, float]], errors: list[str]) -> None:
    """Opens the page, moves sliders, looks at plans, asks why not, takes the JSON."""
    place = urlsplit(server_url)
    rng = random.Random(seed)
    connection = HTTPConnection(str(place.hostname), place.port, timeout=60)
    try:
        for turn in range(EACH):
            question = {
                **START,
                "model": rng.choice(["llama-3.1-70b", "llama-3.1-8b", "qwen2.5-32b"]),
                "gpus": rng.choice(["64", "128", "256"]),
                "log2_nic": rng.choice(["-1", "0", "0.5", "1"]),
                "log2_gbs": rng.choice(["0", "1", "2"]),
                "lang": rng.choice(["en", "zh"]),
            }
            path = rng.choice(["/", "/answer", "/answer", "/answer", "/plan.json"]) if turn else "/"
            if rng.random() < 0.2:
                question["why"] = "tp8,pp1"
            status, spent, at_server, body = ask(connection, f"{path}?{urlencode(question)}")
            seen.append((status, spent, at_server))
            if status != 200:
                errors.append(f"{status} {path} {question}: {body[:200]!r}")
    except OSError as error:
        errors.append(repr(error))
    finally:
        connection.close()


def test_twenty_people_at_once(server: Any) -> None:
    seen: list[tuple[int, float, float]] = []
    errors: list[str] = []
    people = [
        threading.Thread(target=person, args=(server.url, seed, seen, errors)) for seed in range(PEOPLE)
    ]
    begun = time.perf_counter()
    for thread in people:
        thread.start()
    for thread in people:
        thread.join(120)
    spent = time.perf_counter() - begun
    assert errors == []
    assert len(seen) == PEOPLE * EACH
    times = sorted(s for _, s, _ in seen)
    print(
        f"\n{len(seen)} requests of {PEOPLE} people in {spent:.1f} s:"
        f" median {statistics.median(times):.2f} s, P95 {times[int(0.95 * len(times))]:.2f} s"
    )


def test_a_slider_is_answered_within_300_ms_at_the_server(server: Any) -> None:
    """The 70B question, each position new to the server: a search and the pictures of the best plan."""
    place = urlsplit(server.url)
    connection = HTTPConnection(str(place.hostname), place.port, timeout=60)
    ask(connection, "/?" + urlencode(START))
    spent = []
    for nic in ("-2.5", "-1.5", "1.5", "2.5", "-3", "3"):
        query = urlencode({**START, "log2_nic": nic})
        status, waited, cpu, _ = ask(connection, f"/answer?{query}")
        assert status == 200
        spent.append((cpu, waited))
    connection.close()
    told = ", ".join(f"{1e3 * cpu:.0f} ({1e3 * waited:.0f})" for cpu, waited in spent)
    print(f"\nslider to new ranking, processor time of the server (and on the clock): {told} ms")
    assert statistics.median(cpu for cpu, _ in spent) < 0.3


def test_a_long_question_does_not_hold_up_a_short_one(server: Any) -> None:
    place = urlsplit(server.url)
    long = {
        "model": "deepseek-v3", "gpu": "h800", "gpus": "2048", "seq": "4096", "gbs": "15360",
        "sharding": "zero1,zero3",
    }  # fmt: skip
    waiting = HTTPConnection(str(place.hostname), place.port, timeout=120)
    waiting.request("GET", "/plan.json?" + urlencode(long))
    quick = HTTPConnection(str(place.hostname), place.port, timeout=60)
    status, _, _, _ = ask(quick, "/plan.json?" + urlencode({**START, "gbs": "1024"}))
    assert status == 200
    assert waiting.sock is not None
    answered, _, _ = select.select([waiting.sock], [], [], 0)
    assert not answered, "the long question was not asked to be long enough"
    waiting.close()  # nobody waits any more; the server ends that search by itself
    quick.close()


def test_ctrl_c_ends_it_quietly(start_server: Any) -> None:
    own = start_server()
    assert own.stop() == 0
    assert "Traceback" not in "".join(own.said)
