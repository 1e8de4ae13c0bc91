"""``--help`` of the commands."""

from __future__ import annotations

from tests.cli.test_cli import run


def test_help_shows_flags_without_a_value() -> None:
    for arguments in ((), ("bench",), ("synth",), ("profile",)):
        result = run(*arguments, "--help")
        assert "--help" in result.stdout
        assert "bool" not in result.stdout.lower()
