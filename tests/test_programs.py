"""Programs in forks of the warm interpreter are what ``subprocess`` would have started."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.programs import Program, python, started


def test_several_programs_run_at_a_time_and_are_asked_and_ended_each_for_itself() -> None:
    with started("-c", "print('one', flush=True); import time; time.sleep(600)") as (one, said):
        assert said == "one"
        with started("-c", "print('other', flush=True); print(input()); exit(3)") as (other, said):
            assert said == "other"
            assert other.poll() is one.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                one.wait(0.01)
            assert other.communicate("typed\n", timeout=300) == ("typed\n", None)
            assert other.returncode == other.poll() == 3
        one.terminate()
        assert one.wait(300) == -signal.SIGTERM


def test_an_interrupted_program_ends_by_that_signal(capsys: pytest.CaptureFixture[str]) -> None:
    with started("-c", "print('ready', flush=True); import time; time.sleep(600)") as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=300) == ("", None)
    assert process.returncode == -signal.SIGINT
    assert capsys.readouterr().err.splitlines()[-1] == "KeyboardInterrupt"


def test_streams_that_are_not_given_are_the_tests_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert Program("-c", "import sys; print('said'); print('wrong', file=sys.stderr)").wait(300) == 0
    assert capfd.readouterr() == ("said\n", "wrong\n")


def test_a_program_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        python("-c", "import time; time.sleep(600)", timeout=0.01)
    assert python("-c", "print(1)").stdout == "1\n"
