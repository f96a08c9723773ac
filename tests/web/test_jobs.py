"""Long searches: in processes of their own, cancelled, abandoned, crashed, refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("starlette", reason="NOT CHECKED: the page (pip install -e '.[test]')")

from meshplan.search.ranking import Ranking
from meshplan.web import jobs as jobs_module
from meshplan.web.jobs import BusyError, Job, Jobs
from meshplan.web.question import START, Address, question_of
from meshplan.web.tasks import Task, ranked

QUICK = Task(asked=question_of(Address(START)))
LONG = {
    "model": "kimi-k2", "gpu": "h800", "gpus": "8192", "seq": "4096", "gbs": "16384", "space": "full",
}  # fmt: skip
"""A search of many seconds."""


def waited(job: Job, *states: str, limit_s: float = 120) -> str:
    end = time.monotonic() + limit_s
    while job.state not in states and time.monotonic() < end:
        job.seen = time.monotonic()
        time.sleep(0.02)
    return job.state


@pytest.fixture
def found() -> list[tuple[str, Ranking]]:
    return []


@pytest.fixture
def make(found: list[tuple[str, Ranking]], request: pytest.FixtureRequest) -> Callable[..., Jobs]:
    def made(**how: Any) -> Jobs:
        jobs = Jobs(lambda key, ranking: found.append((key, ranking)), **how)
        request.addfinalizer(jobs.close)
        return jobs

    return made


def test_a_search_in_a_process_finds_what_a_search_finds(
    make: Callable[..., Jobs], found: list[tuple[str, Ranking]]
) -> None:
    job = make().start(QUICK)
    assert waited(job, "done", "failed") == "done", job.error
    here = ranked(QUICK.asked, advise=True)
    [(key, there)] = found
    assert key == QUICK.key
    assert there.counts == here.counts
    assert list(there.costs.step_s) == list(here.costs.step_s)
    assert there.cost_model == here.cost_model


def test_the_same_question_is_searched_once(make: Callable[..., Jobs]) -> None:
    jobs = make()
    assert jobs.start(QUICK) is jobs.start(QUICK)


def test_a_long_search_tells_how_far_it_is_and_can_be_cancelled(make: Callable[..., Jobs]) -> None:
    jobs = make()
    job = jobs.start(Task(asked=question_of(Address(LONG))))
    assert waited(job, "running") == "running"
    end = time.monotonic() + 120
    while job.priced == 0 and time.monotonic() < end:
        job.seen = time.monotonic()
        time.sleep(0.05)
    assert job.priced > 0
    jobs.cancel(job)
    # Had it gone on to its end it would be done: a state of its own.
    assert waited(job, "cancelled", "done") == "cancelled"


def test_another_watcher_keeps_a_search_alive(make: Callable[..., Jobs]) -> None:
    jobs = make()
    job = jobs.start(Task(asked=question_of(Address(LONG))))
    job.watchers = 2
    jobs.cancel(job)
    assert not job.stop.is_set()
    job.watchers = 1
    jobs.cancel(job)
    assert waited(job, "cancelled") == "cancelled"


def test_a_search_nobody_waits_for_ends(make: Callable[..., Jobs], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "PATIENCE_S", 0.3)
    job = make().start(Task(asked=question_of(Address(LONG))))
    end = time.monotonic() + 120
    while not job.ended and time.monotonic() < end:
        time.sleep(0.05)
    assert job.state == "cancelled"


def test_a_search_that_takes_too_long_is_ended(
    make: Callable[..., Jobs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "TIME_LIMIT_S", 0.5)
    job = make().start(Task(asked=question_of(Address(LONG))))
    assert waited(job, "failed") == "failed"
    assert job.error == "the search took longer than 0 s"


def test_a_child_that_dies_is_said_to_have(make: Callable[..., Jobs]) -> None:
    jobs = make(target=hash)  # three arguments: a TypeError, exit code 1, and no word on the pipe
    job = jobs.start(QUICK)
    assert waited(job, "failed") == "failed"
    assert "the search ended by itself (exit code 1), perhaps out of memory" in job.error
    assert jobs.start(QUICK) is job  # not tried again at once


def test_what_a_search_refuses_is_its_sentence(make: Callable[..., Jobs]) -> None:
    values = {**START, "model": "mixtral-8x7b", "cost_model": "handbook"}
    job = make().start(Task(asked=question_of(Address(values))))
    assert waited(job, "failed") == "failed"
    assert "the handbook cost model prices dense models only" in job.error


def test_too_many_are_refused(make: Callable[..., Jobs], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MOST_JOBS", 2)
    jobs = make(running=1)

    def asked(gbs: int) -> Task:
        return Task(asked=question_of(Address({**LONG, "gbs": str(gbs)})))

    first, second = jobs.start(asked(15360)), jobs.start(asked(7680))
    with pytest.raises(BusyError):
        jobs.start(asked(3840))
    assert waited(first, "running") == "running"
    assert second.state == "waiting"
    jobs.cancel(second)
    assert waited(second, "cancelled") == "cancelled"
    jobs.cancel(first)
    assert waited(first, "cancelled") == "cancelled"


def test_closing_ends_everything(make: Callable[..., Jobs]) -> None:
    jobs = make()
    job = jobs.start(Task(asked=question_of(Address(LONG))))
    assert waited(job, "running") == "running"
    jobs.close()
    assert job.state == "cancelled"
