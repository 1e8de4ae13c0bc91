"""Commands in the documents and in the examples' first lines: their options exist."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from foreload.cli.commands import app
from tests.test_documents import DOCUMENTS, ROOT

COMMANDS: Any = get_command(app)
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
FENCED = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def typed_in(text: str) -> list[str]:
    """The commands of a document's shell blocks, without comments, and those within its sentences."""
    found = []
    for language, block in re.findall(FENCED, text):
        lines = block.splitlines() if language in ("", "sh") else []
        found += [part.strip() for line in lines for part in line.partition(" #")[0].split("&&")]
    text = re.sub(FENCED, "", text)
    return [line for line in (*found, *re.findall(r"`([^`\n]+)`", text)) if re.match(r"foreload [a-z-]", line)]


def parse(line: str) -> None:
    """Have the command's own parser read it; what might be a file or folder is there."""
    name, *arguments = shlex.split(line)[1:]
    if name.startswith("--"):
        offered = {option for parameter in COMMANDS.params for option in parameter.opts}
        assert name in offered | {"--help"}, line
        return
    assert name in COMMANDS.commands, line
    given = [word.strip("[]…").lstrip("/") for word in arguments]
    for word in given:
        if word and not word.startswith("-"):
            Path(word).mkdir(parents=True, exist_ok=True)
    command = COMMANDS.commands[name]
    try:
        command.make_context(f"foreload {name}", [word for word in given if word])
    except Exception as error:
        # A sentence may name a command or an option without what follows. (typer may have a click of its own.)
        if type(error).__name__ not in ("MissingParameter", "BadOptionUsage"):
            raise


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_commands_and_options_that_exist(document: Path) -> None:
    for line in typed_in(document.read_text()):
        parse(line)


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_take_what_their_first_lines_give_them(script: Path) -> None:
    text = script.read_text()
    docstring = ast.get_docstring(ast.parse(text)) or ""
    for line in docstring.splitlines():
        match = re.match(rf"(?:python|torchrun|accelerate launch) (?:.* )?{re.escape(script.name)}\b(.*)", line)
        for option in re.findall(r" (--?[a-z][\w-]*)", match[1] if match else ""):
            assert f'"{option}"' in text, line
    for line in docstring.splitlines():
        for command in re.findall(r"foreload [a-z]+ [^&|(]*", line):
            parse(command.strip())
